"""Say whether a job fits a cluster at all, how long its responses may be there, and which is the smallest that does."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rlplan.errors import InfeasibleError
from rlplan.job import NO_SPECS, Job, Specs
from rlplan.plan import Plan
from rlplan.planner.answers.explain import least_misfit
from rlplan.planner.exact.first_plans import fits_somewhere, lean_plan, plan_on_all_gpus, still_fits
from rlplan.planner.requests.specs import USUAL_HEADROOM
from rlplan.planner.requests.starter import USUAL_WORK, StarterWork, starter_job
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_device, resolve_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.workload import longest

# Of each search, which ends with the first plan that fits: the answer is the same on every machine.
FIRST_PLAN_SECONDS = 0.0
# Responses are told in multiples of it, and no nearer than this share of them.
STEP_TOKENS, NEAR_FRACTION = 1024, 0.1
# The largest cluster that is tried where a job does not fit.
MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """Say what is to fit where.

    Attributes:
        gpu: A device sheet's name.
        work: What is other than in a first job.
    """

    algorithm: str
    model: str
    gpu: str
    gpus: int
    work: StarterWork = USUAL_WORK

    def job(self) -> Job:
        """Return the job, resolved.

        Raises:
            UserError: A name is not known, or a number not allowed.
        """
        job = starter_job(self.algorithm, self.model, self.gpu, self.gpus, Path(), work=self.work)
        return resolve_job(job, Path())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Hold whether a job fits.

    Attributes:
        plan: One that fits; else the one that needs least memory beyond what there is.
        longest_response_tokens: That fits on these GPUs, all else being equal, up to what the model was made
            for; None where not even 1,024 do.
        fewest_gpus: On which the job fits; None where none of up to 64 nodes do.
    """

    job: Job
    plan: Plan
    forecast: Forecast
    longest_response_tokens: int | None
    fewest_gpus: int | None

    @property
    def fits(self) -> bool:
        """Tell whether the job fits as it was asked for."""
        return self.forecast.feasible


def fit(asked: FitRequest) -> Fit:
    """Return whether a job fits, which memory alone says, with a good plan: that of a search which stops at its first.

    Raises:
        UserError: What is asked for is wrong.
        InfeasibleError: It fits nowhere for another reason than memory.
    """
    job = asked.job()
    facts = load_facts(job)
    roomy = Specs(memory_headroom_fraction=USUAL_HEADROOM)
    plan = _plan_that_fits(job, facts, roomy) or _plan_that_fits(job, facts, NO_SPECS)
    shown = plan or _misfit(job, facts)
    return Fit(
        job=job,
        plan=shown,
        forecast=simulate(shown, facts),
        longest_response_tokens=_longest_response(asked, facts, plan),
        fewest_gpus=_fewest_gpus(asked, facts, fits=plan is not None),
    )


def _plan_that_fits(job: Job, facts: Facts, specs: Specs) -> Plan | None:
    """Return a good plan that fits, if any does: of all roles together, or the first of a search, or just a lean one."""
    lean = lean_plan(job, facts, specs)
    if lean is None:
        return None
    plan = plan_on_all_gpus(job, facts, specs)
    if plan is not None:
        return plan
    try:
        found = search(
            job,
            facts,
            objective="throughput",
            specs=specs,
            seconds=FIRST_PLAN_SECONDS,
            placements=1,
        )
    except InfeasibleError:
        return lean  # which a search comes upon once it has more time
    return found.plans[0].plan


def _misfit(job: Job, facts: Facts) -> Plan:
    none = InfeasibleError(f"no plan of job {job.name!r} fits")

    def choose(larger: Facts) -> Plan:
        plan = _plan_that_fits(job, larger, NO_SPECS)
        if plan is None:
            raise none
        return plan

    return least_misfit(choose, facts, none, lambda larger: fits_somewhere(job, larger))


def _can_fit(asked: FitRequest, facts: Facts) -> bool:
    """Tell whether some plan fits; facts of the same device remember what others asked of it."""
    return fits_somewhere(asked.job(), facts)


def _longest_response(asked: FitRequest, facts: Facts, shown: Plan | None) -> int | None:
    """Return the longest responses that fit, by doubling and then halving the interval.

    Args:
        shown: A plan that fits as the job was asked for; None where none does.
    """
    job = asked.job()
    positions = min(job.architecture(role).max_positions for role in job.models)
    most = positions - longest(job.workload.prompt_tokens)
    given = longest(job.workload.response_tokens)
    looked = _LongestResponse(asked, facts, given, shown)
    if shown is not None:
        # Mostly all that a model was made for fits: that is asked first.
        if given >= most or looked.fits(most):
            return max(given, most)
        return looked.search(lambda can: _ends(given, most, can), most)
    tokens = given // 2
    while tokens >= STEP_TOKENS and not looked.fits(tokens):
        tokens //= 2
    if tokens < STEP_TOKENS:
        return None
    return looked.search(lambda can: _between(tokens, given, can), given)


@dataclass(slots=True)
class _LongestResponse:
    """Look for the longest responses that fit.

    What fits as long ones fits as shorter ones. So the plan that fitted last is asked first, which is no search; all
    plans are looked at only where it stops.

    Attributes:
        known: Tokens of responses that fit, where there is a plan.
        plan: What fits them.
    """

    asked: FitRequest
    facts: Facts
    known: int
    plan: Plan | None

    def _job(self, tokens: int) -> Job:
        work, mean = self.asked.work, self.asked.work.mean_response_tokens
        work = replace(
            work, response_tokens=tokens, mean_response_tokens=mean and min(mean, tokens)
        )
        return replace(self.asked, work=work).job()

    def fits(self, tokens: int) -> bool:
        """Tell whether some plan fits, and remember it."""
        found = lean_plan(self._job(tokens), self.facts)
        if found is not None:
            self.known, self.plan = tokens, found
        return found is not None

    def _still_fits(self, tokens: int) -> bool:
        if tokens <= self.known:
            return True
        return self.plan is not None and still_fits(self.plan, self._job(tokens), self.facts)

    def search(self, ends: Callable[[Callable[[int], bool]], tuple[int, int]], misfit: int) -> int:
        """Return tokens that fit.

        Args:
            ends: Given what tells whether tokens fit, it returns some that do and the next that do not.
            misfit: Tokens that are known not to fit.
        """
        low, high = ends(self._still_fits)
        while high < misfit and self.fits(high):
            low, high = ends(self._still_fits)
        return low


def _ends(given: int, most: int, can: Callable[[int], bool]) -> tuple[int, int]:
    """Return tokens that fit and the next that are tried and do not: `given` fits, `most` does not."""
    low, high = given, 2 * given
    while high < most and can(high):
        low, high = high, 2 * high
    return _between(low, min(high, most), can)


def _between(low: int, high: int, can: Callable[[int], bool]) -> tuple[int, int]:
    """Return tokens that fit and the next that do not, near each other: `low` fits, `high` does not."""
    while high - low > max(STEP_TOKENS, NEAR_FRACTION * low):
        middle = (low + high) // 2 // STEP_TOKENS * STEP_TOKENS
        if middle <= low:
            break
        low, high = (middle, high) if can(middle) else (low, middle)
    return low, high


def _fewest_gpus(asked: FitRequest, facts: Facts, *, fits: bool) -> int | None:
    """Return the smallest cluster that fits: parts of a node, then whole nodes."""
    node = asked.work.gpus_per_node or load_device(asked.gpu).gpus_per_node
    parts = [size for size in (1, 2, 4) if size < node]
    sizes = parts + [node * nodes for nodes in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_NODES)]
    tried = [size for size in sizes if (size < asked.gpus if fits else size > asked.gpus)]
    # What fits some nodes fits more of them, of which a plan may leave any unused.
    first = bisect_left(tried, True, key=lambda size: _can_fit(replace(asked, gpus=size), facts))
    if first < len(tried):
        return tried[first]
    return asked.gpus if fits else None
