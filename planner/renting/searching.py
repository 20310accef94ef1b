"""Search what to rent for a run: each candidate cluster as any job is searched, then the run's hours and money.

A number of instances is not searched where bounds tell that it cannot be on the front. Of equally many GPUs of one kind in
nodes of equal size, those with more network, cores and host memory are never slower: the time found on them is a bound of the time on nodes with less of it, up
to the gap that the search left; where searches are ended early, that gap is taken off first. Where that time, at the price of these, is beaten in time and money both by what was
found, nothing is lost beyond that gap; so limits, which are asked of what was found, change nothing in what is searched. Where the job itself limits
money, what keeps that depends on the price, and each is searched.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlplan.errors import FileError, InfeasibleError, MissingFactError
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.job import JOB_VERSION, Job, NodeGroup
from rlplan.plan import Plan
from rlplan.planner.configs.proposing.searching import FactsOf, plans_of
from rlplan.planner.renting.offered import Offered
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import Facts
from rlplan.results.renting import (
    NO_LIMITS,
    LeftOut,
    RentalAnswer,
    RentalLimits,
    RentalOffer,
)
from rlplan.results.run import RunForecast
from rlplan.simulator.timeline.assemble import equal_responses
from rlplan.simulator.whole_run import Curve, run_forecast
from rlplan.units import show_duration, whole_usd
from rlplan.workload import Workload, with_mean

Progress = Callable[[int, int, str], None]
# The cluster of a job that names none; each candidate takes its place.
NO_CLUSTER = ({"gpu": "h100-80gb-sxm", "gpus_per_node": 8},)
OBJECTIVE = "throughput"
NOT_COUNTED = (
    "waiting until instances are there",
    "storage, and traffic out of the cluster",
    "taxes, minimum bookings, discounts and commitments",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentRequest:
    """Hold what is asked: a run of a job, and how its clusters are searched.

    Attributes:
        job: As its file has it, not resolved: what it leaves open depends on its nodes.
        folder: What paths in it are relative to.
        file: Its name for messages.
        curve: Mean lengths of responses over the run; None takes the job's.
        target: The framework that is to run the plans; None takes the job's own.
        seconds: Most that a search takes; None searches to the end.
    """

    job: Job
    folder: Path
    file: str
    steps: int
    facts_of: FactsOf
    curve: Curve | None = None
    limits: RentalLimits = NO_LIMITS
    target: str | None = None
    pinned: Pinned = NOTHING_PINNED
    seconds: float | None = None


def read_rented_job(path: Path) -> Job:
    """Return the job of a file as it stands there; its cluster, that others take the place of, may be missing.

    Raises:
        FileError: The file is broken or of another version, or is a plan's.
    """
    data = load_yaml(path)
    check_version(data, JOB_VERSION, str(path), "job")
    if "job" in data:
        raise FileError(str(path), "is a plan, whose cluster stands", allowed="a job's file")
    return decode(Job, {"cluster": NO_CLUSTER, **data}, str(path))


def job_on(request: RentRequest, each: Offered) -> Job:
    """Return the job, resolved, on instances that may be rented.

    Raises:
        FileError: Parts of the job contradict each other on such nodes.
    """
    instance = each.instance
    group = NodeGroup(
        gpu=instance.gpu,
        gpus_per_node=instance.gpus,
        nodes=each.count,
        inter_node_gbps=instance.inter_node_gbps,
        network=instance.network,
        cpu_cores=instance.cores,
        host_memory_bytes=instance.host_memory_bytes,
        usd_per_gpu_hour=instance.usd_per_hour / instance.gpus,
    )
    job = replace(request.job, cluster=(group,), objective=OBJECTIVE)
    return resolve_job(job, request.folder, file=request.file)


def rent(
    request: RentRequest, candidates: Sequence[Offered], progress: Progress | None = None
) -> RentalAnswer:
    """Return what to rent for a run, as a front of time against money.

    Args:
        candidates: As `offered` orders them: on what comes first, bounds of what follows rest.
        progress: Is told how many are done, of how many, and what is next.

    Raises:
        InfeasibleError: The job fits on none of them, or no run keeps the limits.
        UserError: The job cannot be searched.
    """
    started = time.monotonic()
    found = _OfferSearch(request=request)
    for done, each in enumerate(candidates):
        if progress is not None:
            progress(done, len(candidates), each.words)
        found.look_at(each)
    if progress is not None:
        progress(len(candidates), len(candidates), "")
    if not found.offers:
        raise InfeasibleError(_fits_nowhere(found.left_out))
    taken = tuple(f"assumed: {each}" for each in equal_responses(request.job) if not request.curve)
    front = front_of(within(found.offers, request.limits, taken))
    on_front = {id(offer) for offer in front}
    others = [offer for offer in found.offers if id(offer) not in on_front]
    return RentalAnswer(
        job=request.job.name,
        steps=request.steps,
        limits=request.limits,
        front=front,
        chosen=chosen_of(front, request.limits),
        beaten=tuple(sorted(others, key=lambda each: each.run.seconds)),
        left_out=tuple(found.left_out),
        searched=found.searched,
        reused=found.reused,
        pruned=found.pruned,
        search_seconds=time.monotonic() - started,
        not_counted=NOT_COUNTED,
        notes=(*taken, *_notes(candidates)),
    )


def _fits_nowhere(left_out: Sequence[LeftOut]) -> str:
    """Return that a job fits on nothing, by the last that was tried: the most GPUs of a kind."""
    last = left_out[-1]
    return (
        f"the job fits on nothing that was looked at; on {last.instances} x {last.name} of {last.provider}: "
        f"{last.reason}"
    )


def _notes(candidates: Sequence[Offered]) -> tuple[str, ...]:
    """Return what a reader should know of the prices."""
    sheets = {each.sheet.provider: each.sheet for each in candidates}
    notes = [
        "prices are list prices of the dates beside them, before any discount; ask before you book",
        *(f"{name}: {note}" for name, sheet in sheets.items() for note in sheet.notes),
    ]
    alone = Counter(
        each.sheet.provider for each in candidates if each.instance.inter_node_gbps is None
    )
    if alone:
        told = ", ".join(
            f"{count} {'type' if count == 1 else 'types'} of {name}"
            for name, count in sorted(alone.items())
        )
        notes.append(
            f"one instance alone where no rate of the network between them is known ({told})"
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searched:
    """Hold what a search found on a cluster: the best plan and its run; neither where the job does not fit.

    Attributes:
        fits_nowhere: Whether no plan fits there, whatever the search's time.
    """

    group: NodeGroup
    plan: Plan | None
    run: RunForecast | None
    reason: str
    gap: float
    fits_nowhere: bool = False


@dataclass(slots=True, kw_only=True)
class _OfferSearch:
    """Gather offers, candidate by candidate."""

    request: RentRequest
    # Of equal content, so that what was asked of them, and of the lengths of responses, is known on other clusters too.
    facts: dict[Hashable, Facts] = field(default_factory=dict)
    works: list[Workload] = field(default_factory=list)
    offers: list[RentalOffer] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    known: list[_Searched] = field(default_factory=list)
    searched: int = 0
    reused: int = 0
    pruned: int = 0

    def look_at(self, each: Offered) -> None:
        """Search instances, unless what is known of others says enough."""
        job = self._with_known_work(job_on(self.request, each))
        (group,) = job.cluster
        alike = [] if _limits_expenses(job) else [s for s in self.known if _as_good(s.group, group)]
        same = next((s for s in alike if _as_good(group, s.group)), None)
        bound = next((least for s in alike if (least := self._bound(each, s))), None)
        if same is not None:
            self.reused += 1
            self._keep(each, job, same)
        elif better := next((s for s in alike if s.fits_nowhere), None):
            self.pruned += 1
            self._leave(each, f"no better than nodes on which: {better.reason}")
        elif bound is not None:
            self.pruned += 1
            took = f"at least {show_duration(bound.seconds)} and {whole_usd(bound.usd)}"
            self._leave(each, f"cannot beat what was found: {took}, as bounds have it")
        else:
            self.searched += 1
            searched = self._search(each, job, group)
            self.known.append(searched)
            self._keep(each, job, searched)

    def _with_known_work(self, job: Job) -> Job:
        """Return a job whose workload is that of the clusters before, where they are equal: statistics are known of an object."""
        same = next((work for work in self.works if work == job.workload), None)
        if same is None:
            self.works.append(job.workload)
            return job
        return replace(job, workload=same)

    def _facts_of(self, job: Job) -> Facts:
        facts = self.request.facts_of(job)
        return self.facts.setdefault(facts.content, facts)

    def _search(self, each: Offered, job: Job, group: NodeGroup) -> _Searched:
        try:
            plan, gap, run = self._best(each, job)
        except (InfeasibleError, MissingFactError) as error:
            # A search that was ended early may have missed what fits.
            ended = isinstance(error, InfeasibleError) and self.request.seconds is None
            return _Searched(
                group=group, plan=None, run=None, reason=str(error), gap=0.0, fits_nowhere=ended
            )
        reason = "; ".join(run.infeasible_reasons)
        if reason:
            return _Searched(group=group, plan=None, run=None, reason=reason, gap=0.0)
        return _Searched(group=group, plan=plan, run=run, reason="", gap=gap)

    def _best(self, each: Offered, job: Job) -> tuple[Plan, float, RunForecast]:
        """Return the best plan of a step, or where it does not fit all over the run, that of the run's longest step."""
        plan, gap = self._best_of_step(job)
        run = self._run_of(plan, each)
        if not run.infeasible_reasons or len(run.points) == 1:
            return plan, gap, run
        usual = job.workload.response_tokens
        most = max(point.response_tokens for point in run.points)
        work = replace(job.workload, response_tokens=with_mean(usual, most))
        plan, gap = self._best_of_step(replace(job, workload=work))
        work = replace(plan.job.workload, response_tokens=usual)
        plan = replace(plan, job=replace(plan.job, workload=work))
        return plan, gap, self._run_of(plan, each)

    def _best_of_step(self, job: Job) -> tuple[Plan, float]:
        asked = self.request
        options: dict[str, Any] = {
            "target": asked.target,
            "pinned": asked.pinned,
            "seconds": asked.seconds,
            "placements": 1,
        }
        result = plans_of(job, self._facts_of, **options)
        return result.plans[0].plan, result.gap

    def _run_of(self, plan: Plan, each: Offered) -> RunForecast:
        asked = self.request
        return run_forecast(
            plan,
            self._facts_of(plan.job),
            asked.steps,
            curve=asked.curve,
            usd_per_hour=each.usd_per_hour,
        )

    def _keep(self, each: Offered, job: Job, searched: _Searched) -> None:
        """Note what was found on a cluster, at the price of these instances."""
        if searched.plan is None or searched.run is None:
            self._leave(each, searched.reason)
            return
        instance = each.instance
        unknown = {"host memory": instance.host_memory_bytes, "cores": instance.vcpus}
        plan = searched.plan
        self.offers.append(
            RentalOffer(
                provider=each.sheet.provider,
                name=instance.name,
                gpu=instance.gpu,
                instances=each.count,
                gpus=each.gpus,
                price_date=instance.price_date,
                region=instance.region or each.sheet.region,
                plan=replace(plan, job=replace(plan.job, cluster=job.cluster)),
                run=_at_price(searched.run, each.usd_per_hour),
                gap=searched.gap,
                assumed=tuple(name for name, figure in unknown.items() if figure is None),
            )
        )

    def _leave(self, each: Offered, reason: str) -> None:
        left = LeftOut(
            provider=each.sheet.provider,
            name=each.instance.name,
            instances=each.count,
            reason=reason,
        )
        self.left_out.append(left)

    def _bound(self, each: Offered, searched: _Searched) -> RunForecast | None:
        """Return the least that a run takes on instances no better than those searched, if what was found beats that."""
        if searched.run is None:
            return None
        found = _at_price(searched.run, each.usd_per_hour)
        bound = _faster(found, 1 - searched.gap)
        least = found if self.request.seconds is None else bound
        is_beaten = any(
            run.seconds <= least.seconds
            and run.usd <= least.usd
            and run.interval_seconds[1] <= least.interval_seconds[1]
            and run.interval_usd[1] <= least.interval_usd[1]
            for run in (offer.run for offer in self.offers)
        )
        return bound if is_beaten else None


def _limits_expenses(job: Job) -> bool:
    """Tell whether a job limits what better nodes may take more of: money, or energy, of which every core takes some."""
    specs = job.specs
    return (specs.cost_usd, specs.usd_per_hour, specs.energy_joules) != (None, None, None)


def _faster(run: RunForecast, share: float) -> RunForecast:
    """Return a run that takes a share of its time, at the same price an hour."""
    (soon, late), (low, high) = run.interval_seconds, run.interval_usd
    return replace(
        run,
        seconds=run.seconds * share,
        interval_seconds=(soon * share, late * share),
        usd=run.usd * share,
        interval_usd=(low * share, high * share),
    )


def _at_price(run: RunForecast, usd_per_hour: float) -> RunForecast:
    """Return a run at another price an hour."""
    factor = usd_per_hour / run.usd_per_hour
    low, high = run.interval_usd
    return replace(
        run,
        usd_per_hour=usd_per_hour,
        usd=run.usd * factor,
        interval_usd=(low * factor, high * factor),
    )


def _as_good(one: NodeGroup, other: NodeGroup) -> bool:
    """Tell whether nodes are equally many of the same GPUs, and have as much of all else.

    The network between nodes says nothing where there is one alone; networks of two kinds are not compared.
    """
    if (one.gpu, one.gpus_per_node, one.nodes) != (other.gpu, other.gpus_per_node, other.nodes):
        return False
    if one.nodes > 1 and one.network != other.network:
        return False
    pairs: list[tuple[float | None, float | None]] = [
        (one.cpu_cores, other.cpu_cores),
        (one.host_memory_bytes, other.host_memory_bytes),
    ]
    if one.nodes > 1:
        pairs.append((one.inter_node_gbps, other.inter_node_gbps))
    return all((mine or 0) >= (theirs or 0) for mine, theirs in pairs)


# The front of time against money, and the offer that limits choose: laws that know no search.


def front_of(offers: Sequence[RentalOffer]) -> tuple[RentalOffer, ...]:
    """Return the offers of which none is beaten by another in time and money both: the fastest first, the cheapest last.

    Of equal ones the one with fewer instances stays, then that which comes first by name.
    """
    front: list[RentalOffer] = []
    for offer in sorted(offers, key=_order):
        if not front or offer.run.usd < front[-1].run.usd:
            front.append(offer)
    return tuple(front)


def _order(offer: RentalOffer) -> tuple[object, ...]:
    return (offer.run.seconds, offer.run.usd, offer.instances, offer.provider, offer.name)


def within(
    offers: Sequence[RentalOffer], limits: RentalLimits, taken: Sequence[str] = ()
) -> tuple[RentalOffer, ...]:
    """Return the offers that keep limits at p90.

    Args:
        taken: What was assumed of the work, that whoever is refused may correct.

    Raises:
        InfeasibleError: None does; says which come nearest.
    """
    kept = tuple(offer for offer in offers if limits.keeps(offer.run))
    if kept or not offers:
        return kept
    raise InfeasibleError("; ".join((*_nearest(offers, limits), *taken)))


def _nearest(offers: Sequence[RentalOffer], limits: RentalLimits) -> list[str]:
    """Return why no offer keeps limits, and what would be kept."""
    budget, deadline = limits.budget_usd, limits.deadline_seconds
    asked = [whole_usd(budget)] if budget is not None else []
    asked += [show_duration(deadline)] if deadline is not None else []
    lines = [f"nothing to rent keeps {' and '.join(asked)} at p90"]
    in_time = [o for o in offers if deadline is None or o.run.interval_seconds[1] <= deadline]
    affordable = [o for o in offers if budget is None or o.run.interval_usd[1] <= budget]
    if budget is not None and in_time:
        cheapest = min(in_time, key=lambda each: each.run.interval_usd[1])
        before = " by then" if deadline is not None else ""
        lines.append(f"the cheapest{before} takes {_words(cheapest)}")
    if deadline is not None and affordable:
        fastest = min(affordable, key=lambda each: each.run.interval_seconds[1])
        within_it = " for so much" if budget is not None else ""
        lines.append(f"the fastest{within_it} takes {_words(fastest)}")
    if len(lines) == 1:
        cheapest = min(offers, key=lambda each: each.run.interval_usd[1])
        fastest = min(offers, key=lambda each: each.run.interval_seconds[1])
        lines.append(f"the cheapest takes {_words(cheapest)}, the fastest {_words(fastest)}")
    return lines


def _words(offer: RentalOffer) -> str:
    usd, seconds = offer.run.interval_usd[1], offer.run.interval_seconds[1]
    what = f"{offer.instances} x {offer.name} of {offer.provider}"
    return f"up to {whole_usd(usd)} and {show_duration(seconds)} ({what})"


def chosen_of(front: Sequence[RentalOffer], limits: RentalLimits) -> int | None:
    """Return which of a front within limits is the answer; None where nothing was asked.

    The fastest within a budget, the cheapest within a deadline or within both.
    """
    if limits.deadline_seconds is not None:
        return len(front) - 1
    return 0 if limits.budget_usd is not None else None
