"""Check what would be started: rules that its framework finds broken at run time, memory, time, better settings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from planner.answers.completion import complete
from planner.configs.frameworks import FRAMEWORKS
from planner.configs.importing import Imported, ImportOptions, imported_run, settings_of
from planner.configs.improving import Improvement, improvements
from planner.configs.reading.settings import OFF, Settings
from planner.configs.rules import RULES
from profiles.catalog import load_engine
from profiles.facts import Facts, load_facts
from rlplan.errors import FileError, UserError
from rlplan.files.writing import plain
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.workload.lengths import sample_lengths
from simulator.capabilities import check_played
from simulator.simulate import simulate

Verdict = Literal["fits", "may not fit", "does not fit", "not known"]

# How far a forecast peak may be off: the largest error of the held-back rows of trainer_memory (accuracy page).
MEMORY_SPREAD: Final = 0.09
# How much less of a pass's own tensors a trainer may hold than is forecast: engineering assumption. Fused and
# in-place kernels differ from framework to framework and version to version, and no published row measures them;
# weights, gradients and optimizer states are known.
WORKING_SPREAD: Final = 0.4
WORKING: Final = ("activations", "logits", "margin", "gathered weights", "before they are reduced")
# A limit of steps that no training reaches stands for none.
MOST_STEPS: Final = 100_000


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
        return f"{self.key}{value}: {self.problem}; allowed: {self.allowed} ({self.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Hold the answer.

    Attributes:
        imported: The configuration as a job and plan; None where it cannot be.
        findings: What breaks rules.
        verdict: Whether it fits, as far as that can be said.
        remarks: What the verdict rests on where it is neither plain yes nor no.
        steps: Steps of the whole training; None where it does not say.
        epoch_steps: Steps of one pass over the data; None where it does not say.
    """

    file: str
    imported: Imported | None
    findings: tuple[Finding, ...]
    plan: Plan | None = None
    forecast: Forecast | None = None
    facts: Facts | None = None
    verdict: Verdict = "not known"
    remarks: tuple[str, ...] = ()
    better: tuple[Improvement, ...] = ()
    steps: int | None = None
    epoch_steps: int | None = None

    def document(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        forecast = self.forecast
        return {
            "file": self.file,
            "doubtful": list(self.imported.doubts()) if self.imported else [],
            "will_run": self.will_run,
            "memory": self.verdict,
            "findings": [plain(each) for each in self.findings],
            "remarks": list(self.remarks),
            "better": [plain(each) for each in self.better],
            "steps": self.steps,
            "epoch_steps": self.epoch_steps,
            "step_seconds": None if forecast is None else forecast.iteration_seconds,
            "step_seconds_interval": None
            if forecast is None
            else plain(forecast.iteration_seconds_interval),
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
        FileError: It cannot be read or imported, starts no training, or an option is missing.
    """
    settings = settings_of(framework, words, options)
    broken = list(_findings(settings))
    try:
        found = imported_run(settings, FRAMEWORKS.load(framework).run_of(settings), options)
        facts = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, facts, settings.file)
    except FileError as error:
        if error.file.startswith("--"):
            raise
        if not any(each.stops for each in broken):
            raise
        told = any(each.stops and each.key == error.field for each in broken)
        broken += [] if told else [_of_error(error)]
        return Checked(file=settings.file, imported=None, findings=tuple(broken))
    checked = check_plan(plan, facts, settings.file, found)
    spared = _spared(settings, checked)
    steps, epoch_steps = _steps(settings, found)
    return replace(
        checked,
        findings=tuple(broken),
        verdict=spared[0],
        remarks=(*checked.remarks, *spared[1]),
        steps=steps,
        epoch_steps=epoch_steps,
    )


def check_plan(plan: Plan, facts: Facts, file: str, found: Imported | None = None) -> Checked:
    """Return what is to be said of a plan: whether it fits, and what a step takes.

    Args:
        found: The configuration that it is of.
    """
    check_played(plan, file)
    forecast = simulate(plan, facts)
    verdict, remarks = _verdict(plan, facts, forecast)
    return Checked(
        file=file,
        imported=found,
        findings=(),
        plan=plan,
        forecast=forecast,
        facts=facts,
        verdict=verdict,
        remarks=remarks,
        better=improvements(plan, facts, forecast, found),
    )


def _findings(settings: Settings) -> Iterator[Finding]:
    partial = any(settings.has("defaults: *"))
    for rule in RULES.load(settings.sheet.name):
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
                stops=not partial,
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


def _verdict(plan: Plan, facts: Facts, forecast: Forecast) -> tuple[Verdict, tuple[str, ...]]:
    """Return whether a plan fits, for all lengths, for usual ones, or within what forecasts are off."""
    if forecast.feasible:
        return "fits", ()
    usual = simulate(_at_usual_lengths(plan), facts)
    if usual.feasible:
        words = "a micro-batch of the longest sequences would not fit; those of usual lengths do"
        return "may not fit", (words,)
    if _least(usual.memory) <= 1 + MEMORY_SPREAD:
        words = (
            f"peaks are known to within {MEMORY_SPREAD:.0%}, and activations and logits may take up to "
            f"{WORKING_SPREAD:.0%} less than forecast: with both it would fit"
        )
        return "may not fit", (words,)
    return "does not fit", ()


def _least(memory: Iterable[MemoryForecast], spared: tuple[str, ...] = ()) -> float:
    """Return the least share of what there is that the peak may take, on the fullest pool.

    Args:
        spared: Ends of the names of terms that are not on the GPUs at all.
    """
    shares = [0.0]
    for each in memory:
        off = 0.0
        for term, size in each.terms.items():
            gone = bool(spared) and term.endswith(spared)
            off += size if gone else WORKING_SPREAD * size * term.endswith(WORKING)
        shares.append((each.gpu_peak_bytes - off) / each.capacity_bytes)
        if each.host_capacity_bytes and not each.fits_host:
            shares.append(each.host_peak_bytes / each.host_capacity_bytes)
    return max(shares)


def _at_usual_lengths(plan: Plan) -> Plan:
    """Return a plan whose micro-batches of several sequences have the most tokens of a usual batch."""
    work, tasks = plan.job.workload, plan.tasks
    prompts = sample_lengths(work.prompt_tokens, work.sequences, plan.job.seed)
    responses = sample_lengths(work.response_tokens, work.sequences, plan.job.seed + 1)
    totals = [sum(pair) for pair in zip(prompts, responses, strict=True)]
    for name, layout in tasks.items():
        counts = layout.token_budget is None and layout.micro_batch > 1
        if not counts or plan.pool_of(name).is_host or name.endswith(".generate"):
            continue
        if load_engine(layout.engine).padding != "none":
            continue
        size = layout.micro_batch
        most = max(sum(totals[at : at + size]) for at in range(0, len(totals), size))
        budget = max(most, work.longest_sequence_tokens)
        tasks = tasks.with_item(name, replace(layout, micro_batch=1, token_budget=budget))
    return replace(plan, tasks=tasks)


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
    left = _least(checked.forecast.memory, tuple(set(spares.values())))
    if not spares or left > 1 + MEMORY_SPREAD:
        return checked.verdict, ()
    keys = ", ".join(spares)
    words = f"the forecast counts on the GPU what {keys} keep off it: {', '.join(sorted(set(spares.values())))}"
    return "may not fit", (words,)


def _steps(settings: Settings, found: Imported) -> tuple[int | None, int | None]:
    """Return the steps of the training and of one pass over the data, where a configuration says them."""
    known = settings.sheet.settings

    def whole(name: str) -> int | None:
        try:
            value = settings.optional_whole(name) if name in known else None
        except UserError:
            return None
        return value if value is not None and value > 0 else None

    steps, prompts = whole("steps"), whole("epoch_prompts")
    if steps is not None and steps > MOST_STEPS:
        steps = None
    per_step = found.job.workload.prompts
    epoch = None if prompts is None else -(-prompts // per_step)
    return steps, epoch if epoch is None or epoch <= MOST_STEPS else None
