"""What generation needs outside of the GPUs (sandboxes, host cores, cache of episodes, KV-cache blocks in host memory), and what guessing tokens and reading prompts elsewhere do to it."""

import math
from dataclasses import replace

from rlplan.job import Job, Speculation
from rlplan.profiles.acceptances import acceptances_of
from rlplan.results.forecast import (
    CALL,
    EnvironmentForecast,
    Forecast,
    HostCacheForecast,
    PrefillForecast,
    SpeculationForecast,
)
from rlplan.simulator.costs.taskcost import HANDED
from rlplan.simulator.environments import host_share
from rlplan.simulator.generation.generating import begun, clock_of, host_cache_bytes, replica_limits
from rlplan.simulator.generation.nodes import NODES
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_cost
from rlplan.simulator.timeline.pool_memory import kv_bytes_left
from rlplan.simulator.workload import seconds_evenly
from rlplan.workload import Environment, mean_length

# Quantiles of a distribution of seconds whose mean is taken, each broken off at the environment's limit.
QUANTILES = 4096

NOT_KNOWN = "speculation is not counted, as it is not known how many guesses are accepted: give speculation.acceptance_length, as the engine logs it"
# Whose multi-token prediction is best known, where nothing of the model is.
USUAL_EXAMPLE = "deepseek-v3"


def environments_of(forecast: Forecast, placed: PlacedPlan) -> tuple[EnvironmentForecast, ...]:
    """Return the host cores and cache that each environment of a plan's job needs, in the job's order.

    Core-seconds and contexts are means; steps that an episode's limit cuts off are counted.

    Raises:
        MissingFactError: Steps hold cores, and nobody says how many a node has.
    """
    plan, job = placed.plan, placed.plan.job
    replicas = placed.generate.writing
    seats = host_share(job, replicas).seats
    ahead = 1.0 + math.ceil(plan.staleness) if plan.flow.overlaps else 1.0
    sequences = begun(placed.generate, 1).workload.sequences
    seconds = _generating_seconds(forecast, placed)
    token_bytes = max(1, placed.generate.cached_sequence.token_bytes)
    room_tokens = max(0.0, kv_bytes_left(placed)) / token_bytes
    found = []
    for each, own in zip(job.environments, seats, strict=True):
        episodes = each.share * sequences
        together = math.ceil(episodes * ahead)
        under_way = min(together, each.instances or together)
        inline = each.inference == "inline"
        if inline:
            under_way = min(under_way, replicas)
        core_seconds = episodes * held_seconds(each) * each.cpu_cores
        at_once = min(under_way, own.workers * replicas)
        context = _context_tokens(each, job)
        found.append(
            EnvironmentForecast(
                name=each.name,
                episodes=episodes,
                under_way=under_way,
                core_seconds=core_seconds,
                mean_cores=core_seconds / seconds if seconds > 0 else 0.0,
                most_cores=min(at_once * each.cpu_cores, float(job.host_cores or math.inf)),
                host_cores=job.host_cores,
                context_tokens=context,
                resident=0 if inline else int(room_tokens // context),
                episodes_each=under_way / replicas,
            )
        )
    return tuple(found)


def held_seconds(environment: Environment) -> float:
    """Return the seconds that an episode's reset and steps take on average, waiting for cores apart."""
    limit = environment.step_limit_seconds
    step = float(seconds_evenly(environment.step_seconds, QUANTILES, limit).mean())
    last = environment.final_step_seconds
    final = step if last is None else float(seconds_evenly(last, QUANTILES, limit).mean())
    reset = float(seconds_evenly(environment.reset_seconds, QUANTILES).mean())
    return reset + (mean_length(environment.turns) - 1) * step + final


def _generating_seconds(forecast: Forecast, placed: PlacedPlan) -> float:
    """Return the seconds of an iteration in which episodes are played."""
    if placed.plan.flow.is_endless:
        return forecast.iteration_seconds
    cost = next(each for each in forecast.costs if each.stage == "generation")
    return cost.seconds - cost.parts.get(CALL, 0.0)


def _context_tokens(environment: Environment, job: Job) -> float:
    """Return the tokens of an episode at its end on average."""
    work = job.workload
    tokens = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    tokens += environment.mean_observations_tokens
    return max(1.0, min(tokens, work.longest_sequence_tokens))


def with_host_cache(forecast: Forecast, placed: PlacedPlan) -> Forecast:
    """Return a forecast with the effect of keeping KV-cache blocks in host memory on its generation.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something, or the engine keeps no blocks.
    """
    job, layout = placed.plan.job, placed.generate.layout
    without = PlacedPlan(replace(placed.plan, job=replace(job, kv_offload=None)), placed.facts)
    left = max(0.0, kv_bytes_left(placed))
    ranks = layout.tp * layout.pp
    return replace(
        forecast,
        host_cache=HostCacheForecast(
            replica_bytes=host_cache_bytes(placed.generate, left) * ranks,
            device_bytes=left * ranks,
            generation_seconds=generation_seconds(placed),
            without_seconds=generation_seconds(without),
        ),
    )


def with_prefill_apart(forecast: Forecast, placed: PlacedPlan) -> Forecast:
    """Return a forecast with what replicas that read prompts alone do to its generation.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    job, own = placed.plan.job, placed.generate
    assert job.prefill is not None, "asked of jobs that say so"
    without = PlacedPlan(replace(placed.plan, job=replace(job, prefill=None)), placed.facts)
    cost = task_cost(own, max(0.0, kv_bytes_left(placed)))
    tokens = mean_length(own.workload.prompt_tokens) * own.cached_sequence.token_bytes
    states = own.state_blocks * own.block_bytes
    return replace(
        forecast,
        prefill=PrefillForecast(
            reading=job.prefill.replicas,
            writing=own.writing,
            handed_bytes=(tokens + states) * own.layout.tp * own.layout.pp,
            handed_seconds=cost.seconds_of(HANDED),
            generation_seconds=cost.total.seconds - cost.seconds_of(CALL),
            without_seconds=generation_seconds(without),
        ),
    )


# What guessing tokens ahead does to a plan's generation: beside the same plan without, and at which batch it stops to
# gain.


def not_known(model: str, guesses: int) -> str:
    """Return that it is not known how many guesses are accepted, with what was published of the model or of another.

    Raises:
        FileError: The file of what was published is broken.
    """
    own = acceptances_of(model)
    of_whom = (
        f"published for {model}"
        if own
        else f"nothing is published for {model}; for {USUAL_EXAMPLE}"
    )
    found = "; ".join(each.words(guesses) for each in own or acceptances_of(USUAL_EXAMPLE))
    return f"{NOT_KNOWN} ({of_whom}: {found})"


def with_speculation(forecast: Forecast, placed: PlacedPlan) -> Forecast:
    """Return a forecast with what guessing tokens does to its generation, or a warning where that is not known.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    speculation = placed.plan.job.speculation
    assert speculation is not None, "asked of jobs whose engine guesses"
    given = speculation.tokens_per_step
    if given is None:
        told = not_known(placed.generate.model.name, speculation.draft_tokens)
        return replace(forecast, warnings=(*forecast.warnings, told))
    own, without = placed.generate, _with_speculation(placed, None)
    always = _with_speculation(placed, replace(speculation, most_running=None))
    seconds, without_seconds = (generation_seconds(each) for each in (placed, without))
    return replace(
        forecast,
        speculation=SpeculationForecast(
            tokens_per_step=given,
            generation_seconds=seconds,
            without_seconds=without_seconds,
            most_running=own.running,
            break_even_running=_break_even(always.generate, without.generate),
        ),
    )


def _with_speculation(placed: PlacedPlan, speculation: Speculation | None) -> PlacedPlan:
    """Return the placed plan with this speculation, or without any."""
    job = replace(placed.plan.job, speculation=speculation)
    return PlacedPlan(replace(placed.plan, job=job), placed.facts)


def generation_seconds(placed: PlacedPlan) -> float:
    """Return the seconds of a plan's generation on its pool, without the call."""
    cost = task_cost(placed.generate, max(0.0, kv_bytes_left(placed)))
    return cost.total.seconds - cost.seconds_of(CALL)


def _break_even(own: PlacedTask, without: PlacedTask) -> int | None:
    """Return the number of running sequences from which speculation makes a token slower, at contexts of the mean length.

    The engine is taken to speculate at every batch size, so that the answer says where it should stop. Only batch
    sizes at which steps are priced are tried.
    """
    work = own.workload
    cached = mean_length(work.prompt_tokens) + mean_length(work.response_tokens) / 2
    clocks = [clock_of(replica_limits(task, None)[0]) for task in (own, without)]
    sizes = [*(node for node in NODES[1:] if node < own.running), own.running]
    slower = [
        clocks[0].decode(running, cached) >= clocks[1].decode(running, cached) for running in sizes
    ]
    faster = [size for size, is_slower in zip(sizes, slower, strict=True) if not is_slower]
    if not slower[-1]:
        return None
    return next(size for size in sizes if size > max(faster, default=0))
