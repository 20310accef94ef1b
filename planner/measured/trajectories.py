"""Read trajectories that a run wrote, as episodes: turns, tokens of each, what environments added, and how long they took.

Read are files of one JSON object a line (or one JSON list):

- `messages` in the form of OpenAI's chat completions, roles `system`, `user`, `assistant` and `tool`;
- `prompt` and `completion` as such messages, with `timing`: results and rollouts of verifiers, which prime-rl writes too
  (verifiers, utils/save_utils.py, state_to_output; types.py, RolloutTiming);
- `input` and `output` as text: verl's rollout dumps (trainer/ppo/ray_trainer.py, _dump_generations), whose special tokens are
  left out, so that what tools answered is told by its tags.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import check_regular, encoding_of

# OpenAI, help article "What are tokens and how to count them": a token of English is about four characters.
CHARACTERS_PER_TOKEN: Final = 4.0
# Trajectories are longer than other files that are read: a step's can have gigabytes.
LARGEST_TRAJECTORIES_BYTES: Final = 16 * 1024**3
# What environments answered, in texts: verl's tool agents as Qwen's template has them (`tool_response`), Search-R1
# (`information`), ReTool (`interpreter`), and words that others use.
TAGS: Final = ("tool_response", "information", "interpreter", "observation", "result", "output")
OBSERVATION: Final = re.compile(rf"<({'|'.join(TAGS)})>.*?</\1>", re.DOTALL)
# What a template leaves between what a model and a tool wrote, once special tokens are gone.
ROLES_ALONE: Final = re.compile(r"\s*(?:(?:user|assistant|tool|system)\s*)*")
# Keys of a message with its tokens, with when it was there, and with how long it took.
COUNTS: Final = ("num_tokens", "token_count", "tokens_count", "completion_tokens")
IDS: Final = ("token_ids", "completion_ids", "tokens")
STAMPS: Final = ("timestamp", "created_at", "created", "time", "ts", "end_time")
DURATIONS: Final = {
    "duration_seconds": 1.0,
    "elapsed_seconds": 1.0,
    "latency_seconds": 1.0,
    "duration_s": 1.0,
    "duration_ms": 1e-3,
    "elapsed_ms": 1e-3,
    "latency_ms": 1e-3,
}
# Times since 1970 above this are milliseconds: in seconds they would lie beyond the year 5000.
MILLISECONDS_FROM: Final = 1e11
# Keys by which rows say of which environment they are.
GROUPS: Final = ("env_id", "env_name", "environment", "task", "data_source", "agent_name")
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Hold one trajectory.

    Attributes:
        turns: How often the model answered.
        prompt_tokens: Before its first answer.
        response_tokens: That it wrote in all turns.
        observation_tokens: Of each step between two answers.
        step_seconds: Of steps between two answers, as far as that is told.
        final_seconds: Of what came behind the last answer, such as scoring; None where that is not told.
        reset_seconds: Of what came before the first; None where that is not told.
        ends_in_step: Whether an environment answered behind the last turn.
        counted: Whether all tokens are as the file counts them; else some are taken from characters.
        groups: What the row says under each of `GROUPS`.
    """

    turns: int
    prompt_tokens: int
    response_tokens: int
    observation_tokens: tuple[int, ...] = ()
    step_seconds: tuple[float, ...] = ()
    final_seconds: float | None = None
    reset_seconds: float | None = None
    ends_in_step: bool = False
    counted: bool = False
    groups: tuple[tuple[str, str], ...] = ()

    @property
    def context_tokens(self) -> int:
        """Return all tokens of its context at the end."""
        return self.prompt_tokens + self.response_tokens + sum(self.observation_tokens)

    def group(self, key: str) -> str | None:
        """Return what the row says under a key of `GROUPS`; None where it says nothing."""
        return dict(self.groups).get(key)


def read_trajectories(
    paths: Sequence[Path], characters_per_token: float = CHARACTERS_PER_TOKEN
) -> tuple[Episode, ...]:
    """Return the episodes of files, or of all `.jsonl` and `.json` files in folders and below, in their order.

    Args:
        characters_per_token: Of text whose tokens the file does not count.

    Raises:
        FileError: A file is not there, or no trajectories; or none has a turn.
    """
    found: list[Episode] = []
    for path in _files(paths):
        for where, row in _rows(path):
            episode = _episode(row, str(path), where, characters_per_token)
            if episode.turns:
                found.append(episode)
    if not found:
        raise FileError(str(paths[0]), "has no trajectory with a turn of a model")
    return tuple(found)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(each for each in path.rglob("*") if each.suffix in {".jsonl", ".json"})
        if not inside:
            raise FileError(str(path), "has no file of trajectories", allowed=".jsonl or .json")
        yield from inside


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a file, and where each stands.

    Raises:
        FileError: It cannot be read, or is no JSON.
    """
    check_regular(path, LARGEST_TRAJECTORIES_BYTES)
    line = 0
    try:
        with path.open(encoding=encoding_of(path)) as stream:
            if path.suffix == ".json":
                yield from _listed(path, json.load(stream))
                return
            for line, text in enumerate(stream, 1):
                if text.strip():
                    yield f"line {line}", json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}" if path.suffix == ".json" else f"line {line}"
        raise FileError(str(path), f"is not JSON: {error.msg}", field=where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None


def _listed(path: Path, data: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 -- as JSON has it
    rows = data.get("rollouts", data.get("results", [data])) if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise FileError(str(path), "is no list of trajectories")
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _episode(row: Any, file: str, where: str, per_token: float) -> Episode:  # noqa: ANN401
    """Return a row as an episode.

    Raises:
        FileError: It has none of the forms that are read.
    """
    if isinstance(row, list):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise FileError(file, "is no JSON object or list of messages", field=where)
    found = _of_messages(row, per_token) or _of_texts(row, per_token)
    if found is None:
        raise FileError(
            file,
            "is no trajectory in a form that is read",
            field=where,
            value=", ".join(map(str, row))[:120],
            allowed="messages; prompt and completion; input and output",
        )
    groups = tuple((key, str(row[key])) for key in GROUPS if row.get(key) not in (None, ""))
    return replace(_timed(found, row.get("timing")), groups=groups)


# Messages.


def _of_messages(row: Message, per_token: float) -> Episode | None:
    """Return the episode of messages; None where a row has none."""
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(messages := row.get("messages"), list):
        return _of_chat(messages, per_token)
    if isinstance(completion, list):
        before = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        return _of_chat([*before, *completion], per_token)
    steps = row.get("trajectory")
    if isinstance(steps, list) and steps and isinstance(last := steps[-1], dict):
        parts = [last.get("prompt"), last.get("completion")]
        if all(isinstance(part, list) for part in parts):
            return _of_chat([message for part in parts for message in part or ()], per_token)
    return None


def _of_chat(messages: Sequence[Any], per_token: float) -> Episode:
    """Return the episode of a chat: answers that follow each other are one turn, all between two turns is one step."""
    known = [each for each in messages if isinstance(each, dict)]
    roles = ["assistant" if each.get("role") == "assistant" else "other" for each in known]
    answers = [place for place, role in enumerate(roles) if role == "assistant"]
    if not answers:
        return Episode(turns=0, prompt_tokens=0, response_tokens=0)
    first, last = answers[0], answers[-1]
    steps = list(_steps(known[first : last + 1]))
    counts = [_tokens_of(each, per_token) for each in known]
    written = sum(count for count, role in zip(counts, roles, strict=True) if role == "assistant")
    behind = known[last + 1 :]
    seconds = [_step_seconds(step, before) for step, before in steps]
    return Episode(
        turns=len(steps) + 1,
        prompt_tokens=sum(counts[:first]),
        response_tokens=written,
        observation_tokens=tuple(
            sum(_tokens_of(each, per_token) for each in step) for step, _ in steps
        ),
        step_seconds=tuple(each for each in seconds if each is not None),
        final_seconds=_step_seconds(behind, known[last]) if behind else None,
        ends_in_step=bool(behind),
        counted=all(_counted(each) is not None for each in known),
    )


def _steps(messages: Sequence[Message]) -> Iterator[tuple[list[Message], Message]]:
    """Yield the messages between two answers, and the answer before them."""
    step: list[Message] = []
    before = messages[0]
    for message in messages:
        if message.get("role") != "assistant":
            step.append(message)
            continue
        if step:
            yield step, before
            step = []
        before = message


def _step_seconds(step: Sequence[Message], before: Message) -> float | None:
    """Return what a step took: by its messages' own durations, one after another, or from the answer to its last stamp.

    None where the file says neither.
    """
    durations = [each for message in step if (each := _duration(message)) is not None]
    if durations:
        return sum(durations)
    stamps = [each for message in step if (each := _stamp(message)) is not None]
    begun = _stamp(before)
    if not stamps or begun is None:
        return None
    return max(0.0, stamps[-1] - begun)


def _duration(message: Message) -> float | None:
    for key, factor in DURATIONS.items():
        if (value := _number(message.get(key))) is not None:
            return max(0.0, value * factor)
    begins, ends = (_number(message.get(key)) for key in ("start_time", "end_time"))
    return None if begins is None or ends is None else max(0.0, ends - begins)


def _stamp(message: Message) -> float | None:
    """Return when a message was there, in seconds since 1970."""
    for key in STAMPS:
        value = message.get(key)
        number = _number(value)
        if number is not None:
            return number / 1000 if number > MILLISECONDS_FROM else number
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except ValueError:
                continue
    return None


def _number(value: Any) -> float | None:  # noqa: ANN401 -- as JSON has it
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _tokens_of(message: Message, per_token: float) -> int:
    """Return a message's tokens, as the file counts them or by its characters."""
    count = _counted(message)
    return math.ceil(len(_text_of(message)) / per_token) if count is None else count


def _counted(message: Message) -> int | None:
    """Return a message's tokens as the file counts them; None where it does not."""
    usage = message.get("usage")
    counts = [message.get(key) for key in COUNTS]
    counts += [usage.get("completion_tokens")] if isinstance(usage, dict) else []
    for count in counts:
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return next((len(ids) for key in IDS if isinstance(ids := message.get(key), list)), None)


def _text_of(message: Message) -> str:
    """Return all that a message says: content, reasoning, and calls with their arguments."""
    parts = [_content(message.get("content")), _content(message.get("reasoning_content"))]
    for call in message.get("tool_calls") or ():
        if isinstance(call, str):
            parts.append(call)
        elif isinstance(call, dict):
            called = call.get("function", call)
            if isinstance(called, dict):
                parts += [_content(called.get("name")), _content(called.get("arguments"))]
    return "".join(parts)


def _content(value: Any) -> str:  # noqa: ANN401 -- as JSON has it
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(
            _content(each.get("text")) if isinstance(each, dict) else _content(each)
            for each in value
        )
    return json.dumps(value, ensure_ascii=False)


# Texts.


def _of_texts(row: Message, per_token: float) -> Episode | None:
    """Return the episode of a prompt and a response as texts; None where a row has none."""
    for before, after in (("input", "output"), ("prompt", "completion"), ("prompt", "response")):
        prompt, response = row.get(before), row.get(after)
        if isinstance(response, str):
            shown = prompt if isinstance(prompt, str) else _content(prompt)
            return _of_text(shown, response, per_token)
    return None


def _of_text(prompt: str, response: str, per_token: float) -> Episode:
    """Return the episode of a response in which tags tell what environments answered."""
    written: list[str] = []
    observed: list[str] = []
    place = 0
    for found in OBSERVATION.finditer(response):
        between = response[place : found.start()]
        if observed and not _says(between):
            observed[-1] += found[0]  # several answers to one turn
        else:
            written.append(between)
            observed.append(found[0])
        place = found.end()
    rest = response[place:]
    ends_in_step = bool(observed) and not _says(rest)
    if not ends_in_step:
        written.append(rest)
    steps = observed[:-1] if ends_in_step else observed

    def tokens(text: str) -> int:
        return math.ceil(len(text) / per_token)

    return Episode(
        turns=len(written),
        prompt_tokens=tokens(prompt),
        response_tokens=sum(map(tokens, written)),
        observation_tokens=tuple(map(tokens, steps)),
        ends_in_step=ends_in_step,
    )


def _says(text: str) -> bool:
    """Tell whether a text is more than the names of roles."""
    return ROLES_ALONE.fullmatch(text) is None


# What a row says of its time.


def _timed(episode: Episode, timing: Any) -> Episode:  # noqa: ANN401 -- as JSON has it
    """Return an episode with what verifiers timed: the environment's spans, its setup, and scoring."""
    if not isinstance(timing, dict):
        return episode
    env = timing.get("env")
    spans = env.get("spans") if isinstance(env, dict) else None
    steps = [each for span in spans or () if (each := _span_seconds(span)) is not None]
    scoring = _span_seconds(timing.get("scoring"))
    if scoring is None and (scoring := _number(timing.get("scoring_ms"))) is not None:
        scoring /= 1000
    reset = _span_seconds(timing.get("setup"))
    return replace(
        episode,
        step_seconds=tuple(steps) or episode.step_seconds,
        final_seconds=episode.final_seconds if scoring is None else scoring,
        reset_seconds=episode.reset_seconds if reset is None else reset,
    )


def _span_seconds(span: Any) -> float | None:  # noqa: ANN401 -- as JSON has it
    """Return the seconds of a span; None where there is none, or it never ended."""
    if not isinstance(span, dict):
        return None
    begins, ends = _number(span.get("start")), _number(span.get("end"))
    if begins is not None and ends is not None:
        return ends - begins if ends >= begins > 0 else None
    return _number(span.get("duration"))
