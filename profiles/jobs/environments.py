"""Environments of a job: their distributions, their checks, the cores of hosts that their steps hold."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.job import Job
from rlplan.profiles.jobs.checks import JobPlace, check_lengths
from rlplan.rules.pools import lacking_cores
from rlplan.workload import (
    EmpiricalSeconds,
    Environment,
    Lengths,
    Logged,
    LognormalSeconds,
    PercentileSeconds,
    Seconds,
    UniformSeconds,
    longest,
)

FIELD = "workload.environments"
# Shares that people round to three digits still sum to 1.
ROUNDING = 0.005


def with_traces_read(
    environments: tuple[Environment, ...], read: Callable[[str, Lengths], Lengths], place: JobPlace
) -> tuple[Environment, ...]:
    """Return environments whose turns and observations are distributions.

    Args:
        read: Returns the lengths of a field, read if they are in a trace.

    Raises:
        FileError: A trace is missing, or lengths are given as a framework's log prints them.
    """

    def known(field: str, lengths: Lengths) -> Lengths:
        if isinstance(lengths, Logged):
            raise place.error(
                field,
                "logs do not say how these are spread",
                value=lengths.distribution,
                allowed="a number, lognormal, uniform, empirical, trace",
            )
        return read(field, lengths)

    return tuple(
        replace(
            each,
            turns=known(f"{FIELD}.{at}.turns", each.turns),
            observation_tokens=each.observation_tokens
            and known(f"{FIELD}.{at}.observation_tokens", each.observation_tokens),
        )
        for at, each in enumerate(environments)
    )


def check_environments(job: Job, place: JobPlace) -> None:
    """Check each environment, that their shares are the whole, and that the algorithm plays episodes.

    Raises:
        FileError: One of them is wrong; the field is named.
    """
    if not job.environments:
        return
    for at, environment in enumerate(job.environments):
        _check_one(f"{FIELD}.{at}", environment, job, place)
    twice = [name for name, count in Counter(e.name for e in job.environments).items() if count > 1]
    if twice:
        raise place.error(FIELD, "has two of this name", value=twice[0], allowed="each name once")
    for at, environment in enumerate(job.environments):
        if environment.inference != job.environments[0].inference:
            raise place.error(
                f"{FIELD}.{at}.inference",
                "all environments of a job answer in one way",
                value=environment.inference,
                allowed=job.environments[0].inference,
            )
    whole = sum(each.share for each in job.environments)
    if abs(whole - 1) > ROUNDING:
        raise place.error(
            f"{FIELD}.{len(job.environments) - 1}.share",
            f"the shares of all environments sum to {whole:g}",
            value=job.environments[-1].share,
            allowed="shares that sum to 1",
        )
    if load_algorithm(job.algorithm).one_sample:
        raise place.error(
            FIELD,
            f"{job.algorithm} compares a sample with the greedy response, not episodes with each other",
            allowed="another algorithm, or no environments",
        )


def _check_one(field: str, environment: Environment, job: Job, place: JobPlace) -> None:
    for name in ("turns", "observation_tokens"):
        check_lengths(f"{field}.{name}", getattr(environment, name), place)
    for name in ("step_seconds", "final_step_seconds", "reset_seconds"):
        _check_seconds(f"{field}.{name}", getattr(environment, name), place)
    most = longest(environment.turns)
    if environment.observation_tokens is None and most > 1:
        raise place.error(
            f"{field}.observation_tokens",
            f"is missing: episodes have up to {most} turns, and each step but the last adds to the context",
            allowed="tokens that a step adds, a number or a distribution",
        )
    tokens = longest(job.workload.response_tokens)
    if most > tokens:
        raise place.error(
            f"{field}.turns",
            f"episodes have up to {most} turns, and workload.response_tokens, all turns together, at most "
            f"{tokens}",
            value=most,
            allowed=f"at most {tokens}",
        )


def _check_seconds(field: str, seconds: Seconds | None, place: JobPlace) -> None:
    if isinstance(seconds, UniformSeconds) and seconds.low > seconds.high:
        allowed = f"at most {seconds.high:g}"
        raise place.error(f"{field}.low", "is above high", value=seconds.low, allowed=allowed)
    if isinstance(seconds, EmpiricalSeconds) and not seconds.values:
        raise place.error(f"{field}.values", "is empty", allowed="at least one time in seconds")
    if isinstance(seconds, PercentileSeconds) and seconds.p99 < seconds.p50:
        allowed = f"at least {seconds.p50:g}"
        raise place.error(f"{field}.p99", "is below p50", value=seconds.p99, allowed=allowed)
    if isinstance(seconds, LognormalSeconds | PercentileSeconds) and seconds.max is not None:
        usual = seconds.mean if isinstance(seconds, LognormalSeconds) else seconds.p50
        if usual > seconds.max:
            words, allowed = "is below the usual seconds", f"at least {usual:g}"
            raise place.error(f"{field}.max", words, value=seconds.max, allowed=allowed)


def check_host_cores(job: Job, place: JobPlace) -> None:
    """Check that the nodes of a resolved job have the cores that steps hold (a rule of plans).

    Raises:
        FileError: A step, or all workers that are asked for, hold more.
    """
    problem = lacking_cores(job)
    if problem is not None:
        field = problem.field.removeprefix("job.")
        raise place.error(field, problem.words, value=problem.value, allowed=problem.allowed)
