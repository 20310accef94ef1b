"""The forms that a user's reward function may have: this project's, verl's and TRL's.

They are told apart by the names of their parameters, for verl and TRL pass all of them by name.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rlplan.errors import FileError
from rlplan.executor.data.prompt_files import MESSAGES, ORIGIN
from rlplan.executor.learning.answers import origin_of

Rule: TypeAlias = Callable[[str, str, dict[str, Any]], float]
Parameters: TypeAlias = Mapping[str, inspect.Parameter]

OF_VERL = frozenset({"data_source", "solution_str", "ground_truth"})
COMPLETIONS = "completions"
# What TRL passes beside a row's columns, and a rule does not know.
OF_THE_TRAINER = frozenset({"completion_ids", "trainer_state", "log_extra", "log_metric"})
NOT_COLUMNS = frozenset({"prompt", "completion", ORIGIN, MESSAGES}) | OF_THE_TRAINER
FORMS = (
    "NAME(prompt, response, row); verl's NAME(data_source, solution_str, ground_truth, extra_info=None);"
    " TRL's NAME(prompts, completions, **columns)"
)


def as_rule(function: Callable[..., Any], file: str, name: str) -> Rule:
    """Return a user's function as a rule, whichever of the three forms it has.

    Raises:
        FileError: It has none of them.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function  # compiled: its own check of what it is given is all there is
    found = frozenset(parameters)
    if inspect.iscoroutinefunction(function):
        raise _refused(file, name, function, "is awaited, which no rule is")
    if COMPLETIONS in found:
        return _of_trl(function, parameters, file, name)
    if found >= OF_VERL:
        return _of_verl(function, parameters, file, name)
    if found & OF_VERL or not _takes_three(function):
        raise _refused(file, name, function, "has parameters of no form that is known")
    return function


def _refused(file: str, name: str, function: Any, problem: str) -> FileError:
    given = f"{name}{inspect.signature(function)}"
    return FileError(
        file, problem, field=name, value=given, allowed=FORMS.replace("NAME", name or "name")
    )


def _takes_three(function: Any) -> bool:
    try:
        inspect.signature(function).bind("prompt", "response", {})
    except TypeError:
        return False
    return True


def _required(parameters: Parameters) -> frozenset[str]:
    """Return the parameters that a call must give."""
    many = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(
        name
        for name, each in parameters.items()
        if each.kind not in many and each.default is inspect.Parameter.empty
    )


def _accepted(parameters: Parameters, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a function takes by name."""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


def _check_by_name(function: Any, parameters: Parameters, file: str, name: str) -> None:
    if any(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in parameters.values()):
        raise _refused(file, name, function, "has parameters that cannot be passed by name")


def _of_verl(function: Any, parameters: Parameters, file: str, name: str) -> Rule:
    """Return verl's `compute_score` as a rule.

    The right answer is the row's `reward_model.ground_truth`, or its `answer`; what the row does not
    have of the rest is None, or an empty `extra_info`.
    """
    _check_by_name(function, parameters, file, name)
    if others := sorted(_required(parameters) - OF_VERL - {"extra_info"}):
        raise _refused(file, name, function, f"needs {others[0]}, which is not passed")

    def call(prompt: str, response: str, row: dict[str, Any]) -> float:
        values = {
            "data_source": row.get("data_source"),
            "solution_str": response,
            "ground_truth": _ground_truth(row, prompt, name),
            "extra_info": dict(row.get("extra_info") or {}),
        }
        score = function(**_accepted(parameters, values))
        if isinstance(score, Mapping) and "score" in score:
            score = score["score"]
        return score  # type: ignore[no-any-return]  # checked by who calls

    return call


def _ground_truth(row: dict[str, Any], prompt: str, name: str) -> Any:
    judged = row.get("reward_model")
    if isinstance(judged, Mapping) and "ground_truth" in judged:
        return judged["ground_truth"]
    if "answer" not in row:
        raise FileError(
            origin_of(row, prompt),
            f"is missing (the function {name} compares with it)",
            field="reward_model.ground_truth",
            allowed="reward_model: {ground_truth: ...}, or answer",
        )
    return row["answer"]


def _of_trl(function: Any, parameters: Parameters, file: str, name: str) -> Rule:
    """Return one of TRL's reward functions as a rule: it is called with one completion at a time.

    Texts are completed by a text; a chat's messages by a message of the assistant. Other columns of
    the row are lists of one value. None, with which a function leaves a response to others, is 0.
    """
    _check_by_name(function, parameters, file, name)
    needed = _required(parameters) - {"prompts", COMPLETIONS}
    if others := sorted(needed & OF_THE_TRAINER):
        raise _refused(file, name, function, f"needs {others[0]}, which is not passed")

    def call(prompt: str, response: str, row: dict[str, Any]) -> float:
        columns = {key: [value] for key, value in row.items() if key not in NOT_COLUMNS}
        if missing := sorted(needed - columns.keys()):
            problem = f"is missing (the function {name} takes it)"
            raise FileError(origin_of(row, prompt), problem, field=missing[0])
        messages = row.get(MESSAGES)
        answer: Any = response
        if messages is not None:
            answer = [{"role": "assistant", "content": response}]
        values = {
            **columns,
            "prompts": [prompt if messages is None else messages],
            COMPLETIONS: [answer],
        }
        rewards = list(function(**_accepted(parameters, values)))
        if len(rewards) != 1:
            raise ValueError(f"returns {len(rewards)} rewards for one completion")
        return 0.0 if rewards[0] is None else rewards[0]

    return call
