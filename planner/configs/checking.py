"""Check what would be started: rules that its framework finds broken at run time, memory, time, better settings."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import lcm
from typing import Any, Final

from rlplan.errors import FileError, MissingValueError, MissingValuesError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain
from rlplan.plan import Plan, ResourcePool
from rlplan.planner.answers.completion import complete
from rlplan.planner.answers.explain import Shortage, first_shortage
from rlplan.planner.answers.verdicts import NEAR, Verdict, verdict_at
from rlplan.planner.configs.beside import MOST_STEPS
from rlplan.planner.configs.broken import keys_of_a_copy, rules_of
from rlplan.planner.configs.frameworks import absent, has
from rlplan.planner.configs.importing import (
    Imported,
    ImportOptions,
    imported_run,
    in_keys,
    run_of,
    settings_of,
)
from rlplan.planner.configs.margins import (
    LEFT_BESIDE_ENGINE,
    idle_bytes,
    kept_share,
    lingering_bytes,
    sure_share,
    wakes_beside_trainers,
)
from rlplan.planner.configs.proposing.changes import RetypedConfiguration
from rlplan.planner.configs.proposing.improving import Improvement, improvements
from rlplan.planner.configs.reading.settings import OFF, Lost, Settings
from rlplan.planner.configs.run import Run, Work
from rlplan.planner.configs.sizes import nearest_divisor
from rlplan.planner.configs.uncounted import uncounted_models, uncounted_sizes
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.results.run import RunForecast
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import check_played, simulate
from rlplan.simulator.timeline.pool_memory import (
    memory_moments,
    peak_at_limits_bytes,
    pool_memory,
)
from rlplan.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisibleJob:
    """Hold what a configuration comes to once its batches divide.

    Attributes:
        words: What stands in place of what it says.
    """

    found: Imported
    plan: Plan
    facts: Facts
    words: str


def relaxed(settings: Settings, run: Run, options: ImportOptions) -> DivisibleJob | None:
    """Return a run with the nearest batches that divide, and positions for its sequences; None where that is not enough.

    What a micro-batch holds stays as it is, and with it what lies in memory.
    """
    work = run.work
    longest = work.max_total or (work.max_prompt or 0) + (work.max_response or 0)
    for changed in _nearest(run):
        try:
            found = imported_run(settings, changed, options, least_positions=longest)
            facts = load_facts(found.resolved)
            plan = complete(found.draft, found.resolved, facts, settings.file)
        except UserError:
            continue
        return DivisibleJob(found=found, plan=plan, facts=facts, words=_words(run, changed))
    return None


def _nearest(run: Run) -> Iterator[Run]:
    """Yield runs that are ever further from one: as many updates as divide, more prompts, no interleaved stages."""
    straight = {role: replace(sizes, chunks=1) for role, sizes in run.trainers.items()}
    for each in (run, replace(run, trainers=straight)):
        yield from (replace(each, work=work) for work in _works(each))


def _works(run: Run) -> Iterator[Work]:
    work = run.work
    yield work
    updates = nearest_divisor(max(1, work.prompts), work.updates)
    yield replace(work, updates=updates)
    copies = lcm(*(sizes.dp for sizes in run.trainers.values()))
    for parts in (copies * updates, copies * work.updates):
        yield replace(
            work, prompts=-(-max(1, work.prompts) // parts) * parts, updates=parts // copies
        )


def _words(run: Run, changed: Run) -> str:
    """Return what a run has in place of another's, for people."""
    work, new = run.work, changed.work
    said = (
        [f"{new.prompts:,} prompts in place of {work.prompts:,}"]
        if new.prompts != work.prompts
        else []
    )
    if new.updates != work.updates:
        said.append(f"{new.updates:,} updates in place of {work.updates:,}")
    if any(new_sizes != run.trainers[role] for role, new_sizes in changed.trainers.items()):
        said.append("stages that are not interleaved")
    return ", ".join(said) or "positions for its longest sequences"


# Settings by which frameworks let an engine leave the GPUs while others work.
SLEEP_SETTINGS: Final = ("frees_cache", "rollout_sleeps", "sleeps", "sleep_level")
# Settings by which they gather weights for an engine a few layers at a time, in place of all at once.
GROUP_SETTINGS: Final = ("sync_groups", "summons_layers")
# Settings by which an engine reads the model, in place of getting it from those that train.
LOAD_SETTINGS: Final = ("load_format",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what is wrong with one key.

    Attributes:
        rule: Name of the rule that it breaks; `import` where the key cannot be imported.
        source: Where the framework asks for it.
        where: File and line, or argument.
        stops: Whether a run stops.
    """

    rule: str
    source: str
    key: str
    value: object
    where: str
    problem: str
    allowed: str
    stops: bool = True

    def __str__(self) -> str:
        """Return the finding in words."""
        value = "" if self.value is None else f"={self.value}"
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.key}{value}: {self.problem}{allowed}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Hold the answer.

    Attributes:
        imported: The configuration as a job and plan; None where it cannot be.
        findings: What breaks rules.
        verdict: Whether it fits, as far as that can be said.
        remarks: What the verdict rests on where it is neither plain yes nor no.
        unchecked: What is not looked at, since nothing is known of it.
        first: Where memory runs out first; None where it does not.
        steps: Steps of the whole training; None where it does not say.
        epoch_steps: Steps of one pass over the data; None where it does not say.
        run: The whole run, where somebody asked for it.
    """

    file: str
    imported: Imported | None
    findings: tuple[Finding, ...]
    plan: Plan | None = None
    forecast: Forecast | None = None
    facts: Facts | None = None
    verdict: Verdict = "not known"
    remarks: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    better: tuple[Improvement, ...] = ()
    first: Shortage | None = None
    steps: int | None = None
    epoch_steps: int | None = None
    run: RunForecast | None = None

    def document(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        forecast = self.forecast
        return {
            "file": self.file,
            "doubtful": list(self.imported.doubts()) if self.imported else [],
            "will_run": self.will_run,
            "memory": self.verdict,
            "findings": [plain(each) for each in self.findings],
            "remarks": [*self.unchecked, *self.remarks],
            "runs_out_first": None if self.first is None else plain(self.first),
            "better": [plain(each) for each in self.better],
            "steps": self.steps,
            "epoch_steps": self.epoch_steps,
            "step_seconds": None if forecast is None else forecast.iteration_seconds,
            "step_seconds_interval": None
            if forecast is None
            else plain(forecast.iteration_seconds_interval),
            "run": None if self.run is None else plain(self.run),
            "step_cost_usd": None if forecast is None else forecast.cost_usd,
            "forecast": None
            if forecast is None
            else plain(replace(forecast, tasks=(), iterations=())),
            "configuration": None if self.imported is None else self.imported.document(),
        }

    @property
    def will_run(self) -> bool:
        """Tell whether nothing stops it."""
        return self.verdict != "does not fit" and not any(each.stops for each in self.findings)


def check_config(framework: str, words: Iterable[str], options: ImportOptions) -> Checked:
    """Return what is to be said of a framework's configuration before it is started.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Its configurations are not read.
        FileError: It cannot be read or imported, starts no training, or an option is missing.
    """
    given = tuple(words)
    settings = settings_of(framework, given, options)
    broken = list(_findings(settings))
    settings.used.clear()  # what only rules read is in no job
    run = None
    try:
        run = run_of(settings, options)
        found = imported_run(settings, run, options)
        facts = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, facts, settings.file)
    except FileError as error:
        # A value that nothing says is to be said, with the command that says it, unless a run stops whatever it is.
        unsaid = isinstance(error, MissingValueError | MissingValuesError)
        told = any(each.stops or (settings.taken_as and not unsaid) for each in broken)
        if error.file.startswith("--") or not told:
            raise error if run is None else in_keys(error, settings, run) from None
        laid_out = None if run is None else relaxed(settings, run, options)
        if laid_out is not None:
            return _of_relaxed(settings, laid_out, broken)
        error = error if run is None else in_keys(error, settings, run)
        told = any(each.stops and each.key == error.field for each in broken)
        broken += [] if told else [_of_error(error)]
        unread = Checked(file=settings.file, imported=None, findings=tuple(broken))
        return replace(unread, unchecked=_unchecked(framework))
    typed = RetypedConfiguration.of(given, options, found, plan, facts)
    # What a rule stops gets no faster by other settings; what fits may keep the rule as well.
    improves = not any(each.stops for each in broken)
    checked = check_plan(plan, facts, settings.file, typed, improves=improves)
    return _with_findings(settings, checked, broken, found)


def _of_relaxed(settings: Settings, laid_out: DivisibleJob, broken: list[Finding]) -> Checked:
    """Return what is to be said of a configuration whose batches do not divide: its memory is that of some that do."""
    checked = check_plan(laid_out.plan, laid_out.facts, settings.file, improves=False)
    words = f"it will not run as it is; memory and step are those of {laid_out.words}"
    checked = replace(checked, remarks=(words, *checked.remarks))
    return _with_findings(settings, checked, broken, laid_out.found)


def _with_findings(
    settings: Settings, checked: Checked, broken: list[Finding], found: Imported
) -> Checked:
    verdict, spared = _in_assumed_pools(checked, found.run) or _spared(settings, checked)
    models, cuts = tuple(uncounted_models(found)), tuple(uncounted_sizes(found))
    unsure = cuts or tuple(found.taken())
    if (models and verdict == "fits") or (unsure and verdict in {"fits", "does not fit"}):
        verdict = "may not fit"
    work = found.job.workload
    steps, epoch_steps = training_steps(settings, work.prompts, work.updates * work.epochs)
    return replace(
        checked,
        findings=tuple(broken),
        verdict=verdict,
        remarks=(
            *models,
            *cuts,
            *checked.remarks,
            *spared,
            *_what_would_fit(settings, checked, found),
        ),
        unchecked=_unchecked(settings.sheet.name),
        steps=steps,
        epoch_steps=epoch_steps,
    )


def _unchecked(framework: str) -> tuple[str, ...]:
    """Return what of a framework's configurations is not looked at."""
    return () if has(framework, "rules") else (absent(framework, "rules"),)


def check_plan(
    plan: Plan,
    facts: Facts,
    file: str,
    typed: RetypedConfiguration | None = None,
    *,
    improves: bool = True,
    forecast: Forecast | None = None,
) -> Checked:
    """Return what is to be said of a plan: whether it fits, and what a step takes.

    Args:
        typed: The configuration that it is of.
        improves: Whether faster settings are looked for. What would make a configuration fit always is.
        forecast: The plan's, where it is at hand.
    """
    check_played(plan, file)
    forecast = simulate(plan, facts) if forecast is None else forecast
    verdict, remarks = _verdict(forecast, PlacedPlan(plan, facts))
    sought = improves or (typed is not None and not forecast.feasible)
    return Checked(
        file=file,
        imported=None if typed is None else typed.found,
        findings=(),
        plan=plan,
        forecast=forecast,
        facts=facts,
        verdict=verdict,
        remarks=remarks,
        better=improvements(plan, facts, forecast, typed) if sought else (),
        first=None if forecast.feasible else first_shortage(plan, facts),
    )


def finding_in_data(mistake: UserError) -> Finding:
    """Return what is to be said of a mistake in a job's data, with which no run of it starts."""
    row = mistake if isinstance(mistake, FileError) else FileError("", str(mistake))
    meant = f"; did you mean {row.nearest!r}?" if row.nearest else ""
    return Finding(
        rule="data",
        source="rlplan execute",
        key=row.field or "data",
        value=row.value,
        where=row.file,
        problem=f"{row.problem}{meant}",
        allowed=row.allowed or "",
    )


def _findings(settings: Settings) -> Iterator[Finding]:
    # What a file that is not at hand, or a fork's own loop, makes of it is not known.
    partial = any(settings.has("defaults: *")) or settings.is_partial
    partial = partial or bool(settings.taken_as) or bool(keys_of_a_copy(settings))
    if settings.lost is not None:
        yield _of_lost(settings.lost)
    for rule in rules_of(settings.sheet.name):
        for broken in rule.broken(settings):
            given = settings.flat.get(broken.key)
            yield Finding(
                rule=rule.name,
                source=rule.source,
                key=broken.key,
                value=settings.given(broken.key),
                where=settings.file if given is None else given.where,
                problem=broken.problem,
                allowed=broken.allowed,
                stops=broken.stops and not partial,
            )


def _of_lost(lost: Lost) -> Finding:
    """Return what is to be said of words below the end of the command, which runs without them."""
    key, _, value = lost.words[0].partition("=")
    more = f", nor are {len(lost.words) - 1} more" if len(lost.words) > 1 else ""
    return Finding(
        rule="the-command-goes-on",
        source="bash",
        key=key,
        value=value or None,
        where=lost.where,
        problem=f"is no part of the command of line {lost.line}, which ends at line {lost.ends}{more}",
        allowed="a command without comments and empty lines between its own",
        stops=False,
    )


def _of_error(error: FileError) -> Finding:
    return Finding(
        rule="import",
        source="rlplan",
        key=error.field or "",
        value=error.value,
        where=error.file,
        problem=error.problem,
        allowed=error.allowed or "another value",
    )


def _verdict(forecast: Forecast, placed: PlacedPlan) -> tuple[Verdict, tuple[str, ...]]:
    """Return whether the fullest GPU, and host, has room, with what that rests on where it is neither yes nor no."""
    share = max((_least_share(each) for each in forecast.memory), default=0.0)
    if verdict_at(share) == "does not fit":
        return "does not fit", ()
    remarks = tuple(_at_limits(forecast, placed))
    doubts = tuple(dict.fromkeys(_doubts(forecast, placed)))
    return ("may not fit", (*doubts, *remarks)) if doubts else ("fits", remarks)


def _doubts(forecast: Forecast, placed: PlacedPlan) -> Iterator[str]:
    """Say why a plan that is not far too full may still not fit."""
    for memory in forecast.memory:
        if memory.host_capacity_bytes:
            full = memory.host_peak_bytes / memory.host_capacity_bytes
            yield from [f"what a host holds {NEAR}"] if verdict_at(full) != "fits" else []
        pool = placed.plan.pool(memory.pool)
        moments, kept = memory_moments(placed, pool), kept_share(placed, pool)
        for during, terms in moments.items():
            full = sum(terms.values()) / memory.capacity_bytes
            if full <= sure_share(during, set(moments), kept):
                continue
            if full <= sure_share(during, set(moments)):
                yield _of_what_is_kept(during, placed, pool)
            elif wakes_beside_trainers(during, set(moments)):
                yield (
                    f"{during} leaves less than {LEFT_BESIDE_ENGINE:.0%} of a GPU to an engine and trainers that "
                    "share it, where two of five reported runs ran out"
                )
            else:
                yield f"its peak {NEAR}"
        if memory.cache_shortage_bytes:
            yield f"its peak {NEAR}"


def _of_what_is_kept(during: str, placed: PlacedPlan, pool: ResourcePool) -> str:
    """Say what a trainer may keep on a GPU on which an engine wakes or gets its weights, beside what is counted."""
    idle, lingering = idle_bytes(placed, pool), lingering_bytes(placed, pool)
    kept = [f"{show_bytes(idle)} of blocks that its allocator does not give back"] if idle else []
    if lingering:
        kept.append(
            f"{show_bytes(lingering)} of optimizer states that may stay in the GPU's memory"
        )
    return f"{during} leaves less than may lie beside what is counted: {' and '.join(kept)}"


def _least_share(memory: MemoryForecast, spared: tuple[str, ...] = ()) -> float:
    """Return the share of what there is that a pool's peak takes, on the GPU or of the host, whichever is more.

    A cache that lacks room counts as what its GPU lacks.

    Args:
        spared: Ends of the names of terms that are not on the GPUs at all.
    """
    off = sum(size for term, size in memory.terms.items() if spared and term.endswith(spared))
    lacks = 1 + memory.cache_shortage_bytes / memory.capacity_bytes
    shares = [(memory.gpu_peak_bytes - off) / memory.capacity_bytes]
    shares += [lacks] if memory.cache_shortage_bytes else []
    if memory.host_capacity_bytes:
        shares.append(memory.host_peak_bytes / memory.host_capacity_bytes)
    return max(shares)


def _at_limits(forecast: Forecast, placed: PlacedPlan) -> Iterator[str]:
    """Say what a pool's fullest GPU, which has room, would need of micro-batches of the longest sequences alone."""
    for memory in (each for each in forecast.memory if each.fits_device):
        peak_bytes = peak_at_limits_bytes(placed, placed.plan.pool(memory.pool))
        if peak_bytes > memory.capacity_bytes:
            yield (
                f"pool {memory.pool}: if all sequences of a micro-batch were as long as they may be, it would take "
                f"{show_bytes(peak_bytes)} of {show_bytes(memory.capacity_bytes)}"
            )


def _spared(settings: Settings, checked: Checked) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict once what a configuration keeps off the GPUs, and the forecast does not, is left out."""
    assert checked.forecast is not None
    if checked.verdict != "does not fit":
        return checked.verdict, ()
    spares = {
        key: term
        for key, given in settings.flat.items()
        for pattern, term in settings.sheet.spares.items()
        if fnmatchcase(key, pattern) and given.value not in OFF
    }
    ends = tuple(set(spares.values()))
    left = max(_least_share(each, ends) for each in checked.forecast.memory)
    if not spares or verdict_at(left) == "does not fit":
        return checked.verdict, ()
    keys = ", ".join(spares)
    words = f"the forecast counts on the GPU what {keys} keep off it: {', '.join(sorted(set(spares.values())))}"
    return "may not fit", (words,)


def _in_assumed_pools(checked: Checked, run: Run) -> tuple[Verdict, tuple[str, ...]] | None:
    """Return the verdict where nothing but pools is too small whose GPUs nothing at hand says; None elsewhere."""
    assert checked.forecast is not None
    small = [
        each for each in checked.forecast.memory if verdict_at(_least_share(each)) == "does not fit"
    ]
    if not small or any(each.pool not in run.assumed_pools for each in small):
        return None
    named = ", ".join(each.pool for each in small)
    return "may not fit", (f"what is too small is {named}, whose GPUs nothing at hand says",)


def _what_would_fit(settings: Settings, checked: Checked, found: Imported) -> Iterator[str]:
    """Say which settings of the engine would make a plan fit that does not, each with what it then takes."""
    facts = checked.facts
    if checked.verdict != "does not fit" or facts is None:
        return
    ways = (
        ("an engine that sleeps while others work", SLEEP_SETTINGS, _asleep(checked)),
        (
            "weights that are gathered in groups of layers for the engine",
            GROUP_SETTINGS,
            _grouped(settings, facts, found),
        ),
        ("an engine that reads the model itself", LOAD_SETTINGS, _reading(checked)),
    )
    for words, names, plan in ways:
        taken = None if plan is None else _taken_if_it_fits(plan, facts)
        if taken is not None:
            named = next((name for name in names if name in settings.sheet.settings), None)
            key = "" if named is None else f" ({settings.key_of(named)})"
            yield f"with {words}{key} it takes at most {taken}"


def _asleep(checked: Checked) -> Plan | None:
    """Return a plan whose engine leaves the GPUs while others work; None where it does."""
    plan = checked.plan
    if plan is None or plan.job.engines.sleeps:
        return None
    engines = replace(plan.job.engines, sleeps=True)
    return replace(plan, job=replace(plan.job, engines=engines))


def _reading(checked: Checked) -> Plan | None:
    """Return a plan whose engine starts with weights, so that no rank has all of them for it; None where it does."""
    plan = checked.plan
    adapter = None if plan is None else plan.job.adapter("actor")
    if plan is None or adapter is None or not adapter.whole_first:
        return None
    adapters = FrozenDict(
        {**(plan.job.adapters or {}), "actor": replace(adapter, whole_first=False)}
    )
    return replace(plan, job=replace(plan.job, adapters=adapters))


def _grouped(settings: Settings, facts: Facts, found: Imported) -> Plan | None:
    """Return a plan whose weights are gathered for the engine a few layers at a time; None where they are, or no key says it."""
    job = found.resolved
    usual = facts.framework(job.framework).weight_sync
    if job.weight_sync == usual or not any(
        name in settings.sheet.settings for name in GROUP_SETTINGS
    ):
        return None
    with suppress(UserError):
        grouped = replace(job, weight_sync=usual)
        return complete(found.draft, grouped, facts, settings.file, misfits=True)
    return None


def _taken_if_it_fits(plan: Plan, facts: Facts) -> str | None:
    """Return what the fullest GPU of a plan takes of what it has, for people; None where the plan does not fit."""
    placed = PlacedPlan(plan, facts)
    found = [pool_memory(placed, pool) for pool in plan.pools if not pool.is_host]
    if not all(each.fits for each in found):
        return None
    fullest = max(found, key=lambda each: each.gpu_peak_bytes / each.capacity_bytes)
    return f"{show_bytes(fullest.gpu_peak_bytes)} of {show_bytes(fullest.capacity_bytes)}"


def training_steps(settings: Settings, prompts: int, updates: int) -> tuple[int | None, int | None]:
    """Return the steps of the training and of one pass over the data, where a configuration says them.

    Args:
        prompts: Of a step.
        updates: Of a step, in all epochs over its batch.
    """
    known = settings.sheet.settings

    def whole(name: str) -> int | None:
        try:
            value = settings.optional_whole(name) if name in known else None
        except UserError:
            return None
        return value if value is not None and value > 0 else None

    steps, epoch_prompts = whole("steps"), whole("epoch_prompts")
    of_training = whole("updates_of_training")
    if steps is None and of_training is not None:
        steps = -(-of_training // updates)
    if steps is not None and steps > MOST_STEPS:
        steps = None
    epoch = None if epoch_prompts is None else -(-epoch_prompts // prompts)
    return steps, epoch if epoch is None or epoch <= MOST_STEPS else None
