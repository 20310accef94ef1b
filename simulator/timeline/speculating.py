"""What guessing tokens ahead does to a plan's generation: beside the same plan without, and at which batch it stops to gain."""

from dataclasses import replace

from rlplan.job import Speculation
from rlplan.profiles.acceptances import acceptances_of
from rlplan.results.forecast import CALL, Forecast, SpeculationForecast
from rlplan.simulator.generation.generating import clock_of, replica_limits
from rlplan.simulator.generation.prices import NODES
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_cost
from rlplan.simulator.timeline.pool_memory import kv_bytes_left
from rlplan.workload import mean_length

NOT_KNOWN = "speculation is not counted, as it is not known how many guesses are accepted: give speculation.acceptance_length, as the engine logs it"
# Whose multi-token prediction is best known, where nothing of the model is.
USUAL_EXAMPLE = "deepseek-v3"


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
    """Return the running sequences from which on guessing makes a token slower, at contexts of the mean length.

    An engine that guesses whatever runs is asked, so that the answer tells where one should stop. They are looked for among the sizes at which steps are priced; of a step in between, none is nearer.
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
