"""What scripts and notebooks call: `import rlplan` gives these functions. Files may be named by path.

import rlplan
found = rlplan.search("job.yaml")
forecast = rlplan.simulate(found.plans[0].plan)
found.to_pandas()
faster = rlplan.search("run.sh", gpu="h100", mean_response=600)  # a framework's script or recipe
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from rlplan.job import Job
from rlplan.plan import FLOWS, USUAL_MODE, Mode, Plan, PlanDraft

if TYPE_CHECKING:
    from rlplan.planner.configs.checking import Checked
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.results.forecast import Forecast, SearchResult
    from rlplan.results.measurement import MeasuredRun
    from rlplan_cli.config_options import GivenOptions
    from rlplan_cli.configured import Configured

File = str | PathLike[str]


class Beside(TypedDict, total=False):
    """What is said beside a framework's script or recipe, which stands where a job's or plan's file may: what it leaves open.

    What makes its answers doubtful, what is assumed of its work, and which of its keys are not understood are warnings.

    Attributes:
        gpu: Type of its GPUs: a device sheet's name or file.
        mean_response: Mean response in tokens.
        mean_prompt: Mean prompt in tokens; left out, the usual.
        model: In place of the actor's: a known name, a Hugging Face id, or a folder with `config.json`.
        values: Values of the framework's keys, whatever the configuration says.
        version: Of the framework, such as `0.7`.
        read_as: The framework whose it is, where its words do not tell.
    """

    gpu: str
    mean_response: float
    mean_prompt: float
    model: str
    values: Mapping[str, object]
    version: str
    read_as: str


def load_job(path: File, **beside: Unpack[Beside]) -> Job:
    """Return the job of a file, or of a framework's script or recipe, its models and devices resolved.

    Args:
        beside: What is said beside a script, by the names in `Beside`.

    Raises:
        FileError: The file is wrong; the message names file and field.
    """
    from rlplan.profiles.catalog import load_job as load_job_file

    script = _script(path, beside)
    return load_job_file(Path(path)) if script is None else script.job


def load_plan(
    path: File,
    *,
    profile: File | None = None,
    site: File | None = None,
    **beside: Unpack[Beside],
) -> Plan:
    """Return the plan of a file, or of a framework's script or recipe; what it leaves open is chosen.

    Args:
        beside: What is said beside a script, by the names in `Beside`.

    Raises:
        FileError: The file is wrong; the message names file and field.
        InfeasibleError: Nothing that keeps what is pinned fits.
    """
    from rlplan.planner.answers.completion import load_plan as load_plan_and_facts

    script = _script(path, beside)
    if script is not None:
        return script.plan(_path(profile), _path(site))[0]
    return load_plan_and_facts(Path(path), _path(profile), site=_path(site))[0]


def search(
    job: Job | File,
    *,
    profile: File | None = None,
    site: File | None = None,
    objective: str | None = None,
    limits: Mapping[str, float] | None = None,
    seconds: float | None = None,
    mode: Mode | None = None,
    framework: str | None = None,
    as_it_stands: Plan | None = None,
    placements: int | None = None,
    **beside: Unpack[Beside],
) -> SearchResult:
    """Return plans of a job (or of what a partial plan leaves open) that its framework can run, best first.

    A framework's script or recipe may stand for the job: its own plan is then one of the candidates.

    Args:
        profile: A folder of `rlplan profile`; without it costs come from data sheets.
        site: A file of `rlplan calibrate`.
        objective: `throughput`, `cost`, `energy` or `time-to-score`; None takes the job's.
        limits: Specs that every plan keeps, beside the job's, such as `{"gpus": 16}`.
        seconds: When to stop with the best plan so far.
        mode: In which plans may run where that is better than sync, such as `async`.
        framework: Whose plans alone are searched, such as `verl`; None takes the job's own.
        as_it_stands: A plan of the job that is one of the candidates, whatever its sizes.
        placements: Of how many, the best ones, plans are wanted; None of all, which takes longer.
        beside: What is said beside a script, by the names in `Beside`.

    Raises:
        UserError: The job, or what is asked for, is wrong; `InfeasibleError` where nothing fits.
    """
    from rlplan.errors import FileError
    from rlplan.planner.requests.drafts import load_request
    from rlplan.planner.requests.pinned import NOTHING_PINNED
    from rlplan.planner.search import check_searched
    from rlplan.profiles.catalog import resolve_job

    pinned = NOTHING_PINNED
    if isinstance(job, Job):
        _refuse_beside(beside)
        given = resolve_job(job, Path())
    elif (script := _script(job, beside)) is not None:
        if as_it_stands is not None:
            raise FileError("as_it_stands", "is said by the script", allowed="without it")
        from rlplan_cli.configured import own_mode

        given, pinned = script.job, script.pinned
        as_it_stands, why_none = script.candidate(_path(profile), _path(site))
        mode = mode or own_mode(as_it_stands)
        if why_none:
            warnings.warn(why_none, stacklevel=2)
    else:
        given, pinned = load_request(Path(job))
    pinned = named_modes(pinned, mode)
    if not isinstance(job, Job):
        check_searched(given, str(job), pinned.asked.modes)
    return search_pinned(
        given,
        pinned,
        Asked(
            profile=_path(profile),
            site=_path(site),
            objective=objective,
            limits=limits,
            seconds=seconds,
            mode=mode,
            framework=framework,
            as_it_stands=as_it_stands,
            placements=placements,
        ),
    )


class Asked(NamedTuple):
    """Hold what is asked of a job, as `search` has it."""

    profile: Path | None = None
    site: Path | None = None
    objective: str | None = None
    limits: Mapping[str, float] | None = None
    seconds: float | None = None
    mode: Mode | None = None
    framework: str | None = None
    as_it_stands: Plan | None = None
    placements: int | None = None


def search_pinned(given: Job, pinned: Pinned, asked: Asked) -> SearchResult:
    """Return plans of a resolved job that keep what is pinned, best first.

    Raises:
        UserError: What is asked for is wrong; `InfeasibleError` where nothing fits.
    """
    from rlplan.files.decoding import decode
    from rlplan.job import Specs
    from rlplan.planner.configs.proposing.searching import plans_of
    from rlplan.planner.objectives import load_objective
    from rlplan.profiles.facts import load_facts

    name = asked.objective or given.objective
    load_objective(name)
    wanted = {**given.specs.given, **(asked.limits or {})}
    if asked.mode is not None:
        wanted["staleness"] = mode_staleness(asked.mode, wanted.get("staleness"))
    job = replace(given, objective=name, specs=decode(Specs, wanted, "limits"))
    return plans_of(
        job,
        partial(load_facts, profile=asked.profile, site=asked.site),
        target=asked.framework,
        pinned=pinned,
        seconds=asked.seconds,
        as_it_stands=asked.as_it_stands,
        placements=asked.placements,
    )


def named_modes(pinned: Pinned, mode: Mode | None) -> Pinned:
    """Return what is pinned with the modes that somebody allows, unless a partial plan says its own."""
    if mode is None or pinned.asked.modes:
        return pinned
    modes = tuple(dict.fromkeys((USUAL_MODE, mode)))
    return replace(pinned, asked=replace(pinned.asked, modes=modes))


def mode_staleness(mode: Mode, known: float | None) -> float:
    """Return how many updates old weights may be in a mode, where so many are known to be allowed (None: nothing is said)."""
    flow = FLOWS[mode]
    allowed = flow.usual_staleness if known is None else known
    return flow.ahead if flow.ahead and allowed < flow.ahead else allowed


def simulate(
    plan: Plan | File,
    *,
    profile: File | None = None,
    site: File | None = None,
    iterations: int = 1,
    **beside: Unpack[Beside],
) -> Forecast:
    """Return the forecast of a plan, or of a framework's script or recipe; one that does not fit says why and what nearest to it does.

    Args:
        profile: A folder of `rlplan profile`; without it costs come from data sheets.
        site: A file of `rlplan calibrate`.
        iterations: To play; the figures are the last one's.
        beside: What is said beside a script, by the names in `Beside`.

    Raises:
        UserError: The plan is wrong.
    """
    from rlplan.planner.answers.completion import load_plan as load_plan_and_facts
    from rlplan.planner.answers.explain import with_nearest_fit
    from rlplan.planner.requests.drafts import load_request
    from rlplan.profiles.facts import load_facts
    from rlplan.simulator.simulate import check_played
    from rlplan.simulator.simulate import simulate as simulate_plan

    if isinstance(plan, Plan):
        _refuse_beside(beside)
        facts = load_facts(plan.job, _path(profile), _path(site))
        return with_nearest_fit(simulate_plan(plan, facts, iterations=iterations), plan, facts)
    path = Path(plan)
    script = _script(path, beside)
    if script is None:
        complete, facts = load_plan_and_facts(path, _path(profile), site=_path(site), misfits=True)
    else:
        complete, facts = script.plan(_path(profile), _path(site))
    check_played(complete, str(path))
    forecast = simulate_plan(complete, facts, iterations=iterations)
    if forecast.feasible:
        return forecast
    pinned = script.pinned if script else load_request(path)[1]
    return with_nearest_fit(forecast, complete, facts, pinned)


def check(
    source: Plan | File,
    *,
    framework: str | None = None,
    arguments: Sequence[str] = (),
    **beside: Unpack[Beside],
) -> Checked:
    """Return whether a plan, a job's or plan's file, or a framework's configuration will run, and what would be faster.

    Args:
        framework: Whose configuration the source is, by its name as in `rlplan check`; None is told by its words, or is none's.
        arguments: Behind a configuration's file, as on its command line.
        beside: What is said beside a configuration, by the names in `Beside`.

    Raises:
        UserError: The source is wrong; what only stops it from running is in the answer.
    """
    from rlplan.files.decoding import is_own_file
    from rlplan.planner.configs.checking import check_config, check_plan
    from rlplan.profiles.facts import load_facts

    if isinstance(source, Plan):
        _refuse_beside(beside)
        return check_plan(source, load_facts(source.job), "plan")
    framework = beside.get("read_as") if framework is None else framework
    words = [str(source), *arguments]
    if framework is None and not arguments and is_own_file(Path(source)):
        _refuse_beside(beside, Path(source))
        return check_file(Path(source))
    from rlplan_cli.config_options import framework_of, import_options

    given = _given(beside)
    named = words if framework is None else [framework, *words]
    found, words = framework_of(named, given.taken_as)
    if found is None:
        return check_file(Path(source))
    return check_config(found, words, import_options(found, words, given))


def check_file(path: Path) -> Checked:
    """Return what is to be said of a job's or plan's file; what it leaves open is chosen."""
    from rlplan.files.decoding import load_yaml
    from rlplan.planner.answers.completion import complete
    from rlplan.planner.configs.checking import check_plan, finding_in_data
    from rlplan.planner.requests.drafts import load_request, read_draft
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.data import mistakes_in_data

    data = load_yaml(path)
    if isinstance(data, dict) and "job" in data:
        draft, job = read_draft(data, path)
    else:
        job, _ = load_request(path)
        draft = PlanDraft(job=job)
    facts = load_facts(job)
    checked = check_plan(complete(draft, job, facts, str(path), misfits=True), facts, str(path))
    mistakes = mistakes_in_data(job, path.parent)
    return replace(checked, findings=(*checked.findings, *map(finding_in_data, mistakes)))


def execute(
    plan: Plan | File, out: File, *, iterations: int, warmup: int = 1, seed: int | None = None
) -> MeasuredRun:
    """Run a plan on Ray for some iterations, into the folder `out`, and return what was measured.

    Args:
        plan: Relative paths in its job are relative to its file, or to where the process runs.
        warmup: First iterations that comparisons leave out.
        seed: Of weights and samples; None takes the job's.

    Raises:
        UserError: torch or Ray is missing, or this engine cannot run the plan.
        WorkerLostError: Workers were lost.
    """
    from rlplan_cli.running import require_execution

    require_execution()
    from rlplan.executor.execute import execute as execute_plan

    complete = plan if isinstance(plan, Plan) else load_plan(plan)
    return execute_plan(
        complete,
        Path(out),
        iterations=iterations,
        warmup=warmup,
        seed=complete.job.seed if seed is None else seed,
        folder=None if isinstance(plan, Plan) else Path(plan).parent,
    )


def _path(path: File | None) -> Path | None:
    return None if path is None else Path(path)


def _script(path: File, beside: Beside) -> Configured | None:
    """Return what a framework's script or recipe says; None of a job's or plan's file, for which nothing is loaded that reads scripts."""
    from rlplan.files.decoding import is_own_file

    if is_own_file(Path(path)):
        _refuse_beside(beside, Path(path))
        return None
    from rlplan_cli.configured import configured

    script = configured(Path(path), _given(beside), beside.get("read_as"))
    for each in () if script is None else script.doubts():
        warnings.warn(each, stacklevel=3)
    return script


def _given(beside: Beside) -> GivenOptions:
    """Return what is said beside a script as commands have it."""
    from rlplan_cli.config_options import GivenOptions

    _check_names(beside)
    model, values = beside.get("model"), beside.get("values")
    return GivenOptions(
        gpu=beside.get("gpu"),
        mean_response=beside.get("mean_response"),
        mean_prompt=beside.get("mean_prompt"),
        model=None if model is None else [model],
        version=beside.get("version"),
        values=None if values is None else [f"{key}={each}" for key, each in values.items()],
    )


def _refuse_beside(beside: Beside, file: Path | None = None) -> None:
    """Refuse what is said beside a job or a plan, which say it themselves.

    Raises:
        FileError: Names it.
    """
    from rlplan.errors import FileError
    from rlplan.files.decoding import check_regular

    _check_names(beside)
    if beside and file is not None:
        check_regular(file)
    for name in beside:
        problem = "is said of frameworks' scripts and recipes, and this is a job or a plan"
        raise FileError(name, problem, allowed="without it")


def _check_names(beside: Beside) -> None:
    """Refuse names that nothing has, as Python does.

    Raises:
        TypeError: Names one.
    """
    for name in beside.keys() - Beside.__annotations__.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")
