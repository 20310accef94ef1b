"""A first job for a model and a cluster, to be edited by its user."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlplan.algorithms import load_algorithm
from rlplan.errors import PlanError
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import to_yaml
from rlplan.job import Hyperparameters, Job, NodeGroup, PromptData, Rewards
from rlplan.profiles.catalog import load_device, resolve_job
from rlplan.profiles.jobs.checks import has_weights, is_hub_id
from rlplan.workload import Empirical, Evaluation, Lengths, Logged, Workload, longest

# A model of some hundred thousand weights learns at rates at which a large one falls apart.
SMALL_MODEL = Hyperparameters(learning_rate=1e-3, critic_learning_rate=2e-3)

# For the user to correct: what a short rule takes where no profile has measured it.
RULE_SECONDS = 1e-4

# Files of which a Hugging Face tokenizer's folder has one at least.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
BYTES = "bytes"

# Of measured lengths a job keeps so many, from the shortest to the longest in equal shares of the prompts.
KEPT_LENGTHS = 17

# Of lengths that do not grow, which a user has nothing to fill in for.
EMPTY_MEANS = "means_between: []"

# What stands beside lines of a first job, by the line's own words.
REMARKS = {
    "weights: random": "drawn from the seed: a rehearsal; a model that is a folder with safetensors starts from these",
    "  learning_rate: 1.0e-06": "usual where all weights of a pre-trained model are trained; adapters take 1e-5 to 1e-4",
    "tokenizer: bytes": "UTF-8 bytes; or a folder with a Hugging Face tokenizer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterPrompts:
    """Describe a file of prompts as a first job takes it.

    Attributes:
        file: Relative to the job's file.
        tokens: Length of each prompt that is learnt from.
        rule: That compares responses with rows' answers; None where not every row has one.
        data: How the file is read; None as usual.
        held_out_file: Of prompts on which the actor is evaluated; None for no evaluation.
        held_out_longest: Tokens of the longest of them.
        held_out_count: How many they are.
    """

    file: str
    tokens: Sequence[int]
    rule: str | None = None
    data: PromptData | None = None
    held_out_file: str | None = None
    held_out_longest: int = 0
    held_out_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterWork:
    """Say what of a first job is other than usual; None takes what is usual.

    Attributes:
        framework: Whose step it is.
        prompts, samples: Prompts of a step, and responses to each.
        prompt_tokens, response_tokens: The longest.
        mean_prompt_tokens, mean_response_tokens: Their means, spread as in published runs; None takes all for the longest.
        gpus_per_node: Of its cluster.
    """

    framework: str | None = None
    prompts: int | None = None
    samples: int | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    mean_prompt_tokens: float | None = None
    mean_response_tokens: float | None = None
    gpus_per_node: int | None = None

    def on(self, job: Job) -> Job:
        """Return a job with this work, to be resolved.

        Raises:
            PlanError: A mean is longer than the longest.
        """
        given: dict[str, Any] = {
            "prompts": self.prompts,
            "samples_per_prompt": self.samples,
        }
        work = replace(job.workload, **{name: each for name, each in given.items() if each})
        work = replace(
            work,
            prompt_tokens=_lengths(
                "prompt", self.prompt_tokens or longest(work.prompt_tokens), self.mean_prompt_tokens
            ),
            response_tokens=_lengths(
                "response",
                self.response_tokens or longest(work.response_tokens),
                self.mean_response_tokens,
            ),
        )
        return replace(job, workload=work, framework=self.framework or job.framework)


USUAL_WORK: Final = StarterWork()


def _lengths(what: str, most: int, mean: float | None) -> Lengths:
    """Return lengths of this mean up to `most` tokens, whose spread is that of published runs; all of them `most` without it.

    Raises:
        PlanError: The mean is longer.
    """
    if mean is None or mean == most:
        return most
    if mean > most:
        raise PlanError(
            f"a mean {what} of {mean:,g} tokens is longer than the longest; allowed: at most {most:,}"
        )
    return Logged(mean=mean, max=most)


def starter_job(
    algorithm: str,
    model: str,
    gpu: str,
    gpus: int,
    folder: Path,
    prompts: StarterPrompts | None = None,
    work: StarterWork = USUAL_WORK,
) -> Job:
    """Return a job that resolves: `model` in every role, on `gpus` devices of one kind.

    On CPU devices the job is small enough to run in a minute; elsewhere it has the size of the
    usual published runs. A folder with weights is what training starts from, at the usual rate of
    pre-trained models, and its tokenizer is taken; of other models weights are random.

    Args:
        folder: Of the job's file, to which a model's path is relative.
        prompts: What it trains on; None leaves that to the user.
        work: What is other than usual; lengths of prompts that it trains on come before its own.

    Raises:
        UserError: The model or device is unknown.
    """
    sheet = load_device(gpu)
    chosen = load_algorithm(algorithm)
    roles = (*chosen.required_roles, *(("cost",) if chosen.constrained else ()))
    small = sheet.kind == "cpu"
    pretrained = has_weights(folder / Path(model).expanduser())
    on_the_hub = is_hub_id(model) and not (folder / model).exists()
    group = chosen.groups
    job = Job(
        name=f"{algorithm}-{Path(model).name.removesuffix('.json')}",
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, model)),
        workload=Workload(
            prompts=(16 if group else 64) if small else (256 if group else 1024),
            samples_per_prompt=4 if group else 1,
            prompt_tokens=16 if small else 1024,
            response_tokens=16 if small else 1024,
            updates=2 if small else 4,
        ),
        cluster=(_nodes(gpu, gpus, work.gpus_per_node or sheet.gpus_per_node),),
        rewards=Rewards(function="digits", function_seconds_per_sample=RULE_SECONDS),
        hyperparameters=SMALL_MODEL if small and not pretrained else Hyperparameters(),
        weights=None if pretrained or on_the_hub else "random",
        tokenizer=tokenizer_of(model, folder),
    )
    job = work.on(job)
    if prompts is not None:
        job = _on_prompts(job, prompts)
    resolve_job(job, folder)
    return job


def tokenizer_of(model: str, folder: Path) -> str:
    """Return the tokenizer of a model: its folder where that has one, else bytes."""
    found = folder / Path(model).expanduser()
    return model if any((found / name).is_file() for name in TOKENIZER_FILES) else BYTES


def _on_prompts(job: Job, prompts: StarterPrompts) -> Job:
    """Return the job with the lengths of its prompts, and a rule that compares with answers where there are any."""
    rewards = job.rewards
    if prompts.rule is not None and rewards is not None:
        rewards = replace(rewards, function=prompts.rule)
    tokens = list(prompts.tokens)
    if prompts.held_out_longest > max(tokens):
        # The lengths are those that are learnt from; the longest has to be room for the others too.
        tokens.append(prompts.held_out_longest)
    work = replace(job.workload, prompt_tokens=_as_lengths(tokens))
    held_out = prompts.held_out_file
    count = prompts.held_out_count or None
    evaluation = None if held_out is None else Evaluation(prompts_file=held_out, prompts=count)
    return replace(
        job,
        workload=work,
        prompts_file=prompts.file,
        prompt_data=prompts.data,
        evaluation=evaluation,
        rewards=rewards,
    )


def _as_lengths(tokens: Sequence[int]) -> Lengths:
    """Return measured lengths as a job has them: one number where all are alike, else their quantiles."""
    ordered = sorted(tokens)
    if ordered[0] == ordered[-1]:
        return ordered[0]
    last = len(ordered) - 1
    places = (round(last * step / (KEPT_LENGTHS - 1)) for step in range(KEPT_LENGTHS))
    return Empirical(values=tuple(ordered[place] for place in places))


def starter_text(job: Job) -> str:
    """Return a first job as YAML, with remarks where a user has to choose."""
    lines = (
        f"{line}  # {REMARKS[line]}" if line in REMARKS else line
        for line in to_yaml(job).splitlines()
        if line.strip() != EMPTY_MEANS
    )
    return "\n".join(lines) + "\n"


def _nodes(gpu: str, gpus: int, usual_gpus_per_node: int) -> NodeGroup:
    """Return the fewest equal nodes that hold `gpus` devices.

    Raises:
        PlanError: The devices do not fill whole nodes.
    """
    if gpus <= usual_gpus_per_node:
        return NodeGroup(gpu=gpu, gpus_per_node=gpus)
    if gpus % usual_gpus_per_node:
        raise PlanError(
            f"{gpus} x {gpu} do not fill nodes of {usual_gpus_per_node}; allowed: multiples of "
            f"{usual_gpus_per_node}, or fewer than that"
        )
    nodes = gpus // usual_gpus_per_node
    return NodeGroup(gpu=gpu, gpus_per_node=usual_gpus_per_node, nodes=nodes)
