"""Checks that need nothing but the job: are all parts there, and do they agree?"""

from math import isqrt

from profiles.architecture_faults import architecture_fault
from profiles.job_place import JobPlace
from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import Algorithm
from rlplan.hardware import DeviceSheet
from rlplan.job import Job
from rlplan.lengths import Empirical, Lengths, Uniform
from rlplan.model import ModelArchitecture

# More than any cluster or batch of today by a factor of ten; a slip of the keyboard is larger still.
MOST_GPUS = 1_000_000
MOST_SEQUENCES = 10_000_000


def check_roles(job: Job, place: JobPlace) -> None:
    """Check the algorithm's name, that it has the models it needs, and where rewards come from.

    Raises:
        FileError: One of them is missing, unknown or too many.
    """
    if job.algorithm not in algorithm_names():
        raise place.unknown("algorithm", "algorithm", job.algorithm, algorithm_names())
    algorithm = load_algorithm(job.algorithm)
    model_roles = [
        role for role in (*algorithm.required_roles, *algorithm.optional_roles) if role != "rule"
    ]
    for role in algorithm.required_roles:
        if role not in job.models:
            raise place.error(
                f"models.{role}",
                f"is missing; {algorithm.name} needs it",
                allowed=", ".join(model_roles),
            )
    for role in job.models:
        if role not in model_roles:
            hint = "; name the function under rewards.function" if role == "rule" else ""
            raise place.error(
                f"models.{role}",
                f"{algorithm.name} has no model of this role{hint}",
                allowed=", ".join(model_roles),
            )
    _check_rewards(job, algorithm, place)


def _check_rewards(job: Job, algorithm: Algorithm, place: JobPlace) -> None:
    has_rule = job.rewards is not None and job.rewards.function is not None
    if has_rule and "rule" not in (*algorithm.required_roles, *algorithm.optional_roles):
        raise place.error("rewards.function", f"{algorithm.name} takes no reward function")
    if not has_rule and "reward" not in job.models and "reward" in algorithm.optional_roles:
        raise place.error(
            "rewards",
            "nothing gives rewards",
            allowed="a reward model under models.reward, or a function under rewards.function",
        )


def check_workload(job: Job, place: JobPlace) -> None:
    """Check that lengths can occur, and that the global batch divides into its updates.

    Raises:
        FileError: One of them is wrong; the field is named.
    """
    work = job.workload
    if work.sequences > MOST_SEQUENCES:
        raise place.error(
            "workload.prompts",
            f"gives {work.sequences:,} responses an iteration",
            value=work.prompts,
            allowed=f"at most {MOST_SEQUENCES:,}, samples_per_prompt counted",
        )
    _check_lengths("workload.prompt_tokens", work.prompt_tokens, place)
    _check_lengths("workload.response_tokens", work.response_tokens, place)
    if work.sequences % work.updates:
        raise place.error(
            "workload.updates",
            f"the {work.sequences} sequences of a global batch do not divide into so many updates",
            value=work.updates,
            allowed=_nearest_divisors(work.sequences, work.updates),
        )
    if load_algorithm(job.algorithm).groups and work.samples_per_prompt == 1:
        raise place.error(
            "workload.samples_per_prompt",
            f"{job.algorithm} compares the samples of one prompt with each other",
            value=1,
            allowed="2 or more",
        )


def check_cluster(job: Job, place: JobPlace) -> None:
    """Check that the cluster has GPUs, in a number that there can be.

    Raises:
        FileError: It has none, or too many; the field is named.
    """
    if not job.cluster:
        raise place.error("cluster", "is empty", allowed="at least one group of nodes")
    if job.gpus > MOST_GPUS:
        raise place.error("cluster", f"has {job.gpus:,} GPUs", allowed=f"at most {MOST_GPUS:,}")


def _check_lengths(field: str, lengths: Lengths, place: JobPlace) -> None:
    if isinstance(lengths, Uniform) and lengths.low > lengths.high:
        raise place.error(
            f"{field}.low",
            "is above high",
            value=lengths.low,
            allowed=f"at most {lengths.high}",
        )
    if isinstance(lengths, Empirical) and not lengths.values:
        raise place.error(f"{field}.values", "is empty", allowed="at least one length")


def _nearest_divisors(number: int, wanted: int) -> str:
    """Return in words the divisors of a number on both sides of the one that was wanted."""
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    divisors = sorted({*small, *(number // candidate for candidate in small)})
    below = max(candidate for candidate in divisors if candidate < wanted)
    above = min((candidate for candidate in divisors if candidate > wanted), default=None)
    return f"{below}" if above is None else f"{below} or {above}"


def check_architectures(job: Job, place: JobPlace) -> None:
    """Check that every model (of a resolved job) is possible and reaches over the longest sequence.

    Raises:
        FileError: A size is wrong, or sequences are longer than a model's positions.
    """
    for role, model in job.models.items():
        assert isinstance(model, ModelArchitecture), "models are resolved before they are checked"
        fault = architecture_fault(model)
        if fault:
            raise place.error(
                f"models.{role}.{fault.field}",
                fault.problem,
                value=getattr(model, fault.field),
                allowed=fault.allowed,
            )
        longest = job.workload.longest_sequence_tokens
        if longest > model.max_positions:
            raise place.error(
                "workload.response_tokens",
                f"the longest prompt and response have {longest} tokens together, more than the "
                f"positions of models.{role} ({model.name})",
                allowed=f"at most {model.max_positions} together",
            )


def check_precision(job: Job, sheets: tuple[DeviceSheet, ...], place: JobPlace) -> None:
    """Check that every device of the cluster has a rate for the job's precision.

    Raises:
        FileError: One has none; the field is `precision`.
    """
    for sheet in sheets:
        if job.precision not in sheet.peak_flops_per_second:
            raise place.error(
                "precision",
                f"the sheet of {sheet.name} has no rate for it",
                value=job.precision,
                allowed=", ".join(sheet.peak_flops_per_second),
            )
