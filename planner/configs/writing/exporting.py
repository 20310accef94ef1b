"""Export a plan: write it by a framework's keys, import them again, and refuse what is not the plan then."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role
from rlplan.plan import USUAL_MODE, Plan, PlanDraft, TaskDraft
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.frameworks import absent, check_parts, has, load_part
from rlplan.planner.configs.importing import run_of
from rlplan.planner.configs.reading.amounts import AMOUNTS, BUCKET
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from rlplan.planner.configs.reading.versions import is_newest, name_in
from rlplan.planner.configs.run import Means, Run, draft_of, job_of
from rlplan.planner.configs.writing.export import (
    GENERATE,
    OF_CRITICS,
    OPEN_AS_ZERO,
    Export,
    Variable,
    family,
    losses_of,
    states_leaving,
)
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import Facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import staying
from rlplan.trainers import State, TrainerOptions
from rlplan.units import show_bytes
from rlplan.workload import Workload, longest, mean_length

# Where a configuration says nothing of it: a plan's, and what an import makes of the configuration, may differ.
UNSAID: Final = frozenset({
    "version", "name", "models", "workload", "cluster", "devices", "engines", "framework", "weight_sync",
    "rewards", "hyperparameters", "failures", "prompts_file", "prompt_data", "tokenizer", "seed", "objective",
    "specs", "adapters", "quantised_at", "dynamic_sampling", "trainers", "weights", "evaluation", "iterations",
    "checkpoints", "speculation", "kv_offload", "prefill",
})  # fmt: skip
# Of these, what a framework has keys for that no export writes: it is said.
UNWRITTEN: Final = (
    "evaluation",
    "iterations",
    "checkpoints",
    "speculation",
    "kv_offload",
    "prefill",
    "teacher",
)
# Switches of trainers that only some frameworks have, by the names of their settings.
SWITCHES: Final[Mapping[str, str]] = {
    "shares_prompts": "shares_prompts",
    "fills_budgets": "padded",
    "freezes_tower": "freezes_tower",
}
# Fields of a layout that only some kinds of tasks have: an import leaves them out of the others.
OPEN: Final = frozenset({
    "micro_batch", "max_running", "memory_fraction", "chunks", "recompute", "zero", "offload",
})  # fmt: skip
# Begins the note on what of a job no key says.
NOT_WRITTEN: Final = "not written, and for you to set"
# Begins the names of a plan's fields that are of its job.
OF_JOB: Final = "job."
OF_PENALTIES: Final = frozenset({"kl_estimator", "kl_target", "kl_horizon"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Hold what was written.

    Attributes:
        framework: Name of the sheet of keys.
        version: The framework's.
        text: A script or a file.
        values: By key; what somebody has to set is None.
        variables: What no plan says, and what it is unless somebody sets it.
        open_keys: Keys of variables: models, data, rewards, whose values somebody sets.
        start: The command that starts it.
        notes: What whoever starts it should know.
    """

    framework: str
    version: str
    text: str
    values: dict[str, Any]
    variables: dict[str, str | None]
    start: str
    open_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def decided(self) -> dict[str, Any]:
        """Return values of the keys that the plan decides: not those of models and data, which are somebody's own."""
        return {key: value for key, value in self.values.items() if key not in self.open_keys}


def exported(
    plan: Plan,
    target: str,
    *,
    file: str = "plan",
    facts: Facts | None = None,
    version: str | None = None,
    runs_on: str | None = None,
    defaults: str | None = None,
    into: str | None = None,
) -> Exported:
    """Return a plan as a framework's launch script or file.

    Args:
        facts: Of its devices, for what to know of their memory.
        into: What a script of the framework starts that the values go into, empty where that is not known: it stays where it runs the
            plan, and says of the job what no export can (layers of the framework's own, a loss of an older version). What is
            written is read again (`patching`). None where there is no such script.
        version: Of the framework; None takes the one whose keys are known.
        runs_on: An earlier version that is to run the plan too, whose keys may lack what the plan needs.
        defaults: The file that an exported file is to inherit from.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Plans are not exported to it.
        FileError: The framework, or that earlier version of it, cannot run the plan: the field is named, and what it can; its
            keys of that version are not known; or it takes no file.
    """
    check_parts(target, "keys", "writing")
    sheet = load_config_sheet(target)
    if version is not None and not is_newest(sheet, version):
        problem = f"of {sheet.title} is not the one whose keys are known"
        raise FileError("--version", problem, value=version, allowed=sheet.version)
    module = load_part(target, "writing")
    inherits = "defaults" in signature(module.text_of).parameters
    if defaults is not None and not inherits:
        problem = f"is for files, and {sheet.title} gets a script"
        raise FileError("--defaults", problem, value=defaults)
    export = Export(plan=plan, sheet=sheet, file=file, into=into)
    start = module.write(export)
    _check(export, start)
    if runs_on is not None:
        _check_earlier(export, start, runs_on)
    export.notes.extend(
        absent(target, part) for part in ("rules", "reading") if not has(target, part)
    )
    left = ", ".join(_unwritten(export))
    if left:
        export.notes.append(f"{NOT_WRITTEN}: {left}")
    if facts is not None:
        export.notes.extend(_of_memory(export, facts))
    text = module.text_of(export, start, **({"defaults": defaults} if inherits else {}))
    named = {key: each for key, each in export.values.items() if isinstance(each, Variable)}
    return Exported(
        framework=target,
        version=sheet.version,
        text=text,
        values={
            key: each.default if isinstance(each, Variable) else each
            for key, each in export.values.items()
        },
        variables={each.name: each.default for each in named.values()},
        open_keys=tuple(named),
        start=start,
        notes=tuple(export.notes),
    )


def _unwritten(export: Export) -> Iterator[str]:
    """Yield the fields of a job, and the buckets of a plan, that the framework is not told of."""
    if export.plan.bucket_bytes is not None and not _tells_buckets(export):
        yield "bucket_bytes"
    job, sizes = export.plan.job, export.sheet.trainers[export.trainer].sizes
    yield from (f"job.{name}" for name in UNWRITTEN if getattr(job, name) is not None)
    if job.judge is not None:
        yield "job.rewards.judge"
    if job.rewards is not None and job.rewards.service is not None:
        yield "job.rewards.service"
    for name in ("images", "sounds"):
        if getattr(job.workload, name) is not None:
            yield f"job.workload.{name}"
    for role, options in (job.trainers or {}).items():
        for name, setting in SWITCHES.items():
            if getattr(options, name) and setting not in sizes:
                yield f"job.trainers.{role}.{name}"


def _tells_buckets(export: Export) -> bool:
    known = export.sheet.settings
    names = (name for name, amount in AMOUNTS.items() if amount is BUCKET and name in known)
    return any(key in export.values for name in names for key in known[name].keys)


def _check(export: Export, start: str) -> None:
    """Refuse what the framework would not run, or would run otherwise, as far as that is known of it.

    Raises:
        FileError: A rule is broken, or the plan is not what the keys amount to.
    """
    model = export.plan.job.architecture("actor").name
    settings = Settings(export.sheet, export.flat(), export.file, start, model=model)
    _check_rules(export, settings, export.sheet.title)
    if not has(export.sheet.name, "reading"):
        return
    run = run_of(settings)
    if export.keeps_job:  # whether a pass tells them is then the script's to say, or its version's
        run = replace(run, old_log_prob=export.plan.job.old_log_prob)
    differing = list(_differences(export.plan, *_imported(export.plan, run)))
    if export.keeps_job:
        differing = [each for each in differing if not each[0].startswith(OF_JOB)]
    if differing:
        field, wanted, found = differing[0]
        more = f" (and {len(differing) - 1} more fields)" if len(differing) > 1 else ""
        problem = f"cannot be told to {export.sheet.title} {export.sheet.version}{more}"
        raise FileError(export.file, problem, field=field, value=wanted, allowed=f"{found}")


def of_version(
    values: Mapping[str, Any], sheet: ConfigSheet, given: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return values by the keys of a framework's earlier version: by its names, without what it has no key for.

    A plug-in may know how it said several keys by one (`of_version`).

    Args:
        given: Keys that a script of that version gives, and so has.
    """
    if sheet.version == load_config_sheet(sheet.name).version:
        return values
    restated = getattr(load_part(sheet.name, "writing"), "of_version", None)
    own = values if restated is None else restated(values, sheet, given)
    named = (
        (key if key in given else name_in(sheet, key, value), value) for key, value in own.items()
    )
    return {name: value for name, value in named if name is not None}


def start_of_version(start: str, sheet: ConfigSheet) -> str:
    """Return the command that starts a framework's earlier version, where its plug-in knows how that is called (`start_of_version`)."""
    restated = getattr(load_part(sheet.name, "writing"), "start_of_version", None)
    return start if restated is None else str(restated(start, sheet))


def _check_earlier(export: Export, start: str, version: str) -> None:
    """Refuse a plan that a framework's earlier version does not run, since it has not the keys for it.

    Raises:
        FileError: Names what the plan needs and no key of that version says.
    """
    name, sheet = export.sheet.name, export.sheet.of(version)
    said = {key: given.value for key, given in export.flat().items()}
    own = of_version(said, sheet)
    if own == said or not has(name, "reading"):
        return
    model, where = export.plan.job.architecture("actor").name, f"{export.file}, exported"

    def settings_with(values: Mapping[str, Any]) -> Settings:
        flat = {key: GivenValue(value=each, where=where) for key, each in values.items()}
        return Settings(sheet, flat, export.file, start, model=model)

    def run(values: Mapping[str, Any]) -> Run:
        return run_of(settings_with(values))

    def differing(values: Mapping[str, Any]) -> dict[str, object]:
        job, draft = _imported(export.plan, run(values))
        both = _differences(export.plan, job, draft)
        # The job is of that version as it is; what is to be told are layouts, pools and how iterations follow each other.
        found = {field: wanted for field, wanted, _ in both if not field.startswith("job.")}
        wakes = export.plan.job.engines.sleeps and not job.engines.sleeps and not export.apart
        return found | ({"job.engines.sleeps": True} if wakes else {})

    if run(own).trainer != export.trainer:  # which that version may name otherwise, as by its file
        tried = ({**own, key: value} for key, value in said.items() if key not in own)
        own = next((each for each in tried if run(each).trainer == export.trainer), own)
    needed = differing(own)
    if needed:
        known = differing(said)
        needed = {field: wanted for field, wanted in needed.items() if field not in known}
    for field, wanted in needed.items():
        problem = f"cannot be told to {export.sheet.title} {version}, which lacks a key for it"
        allowed = f"another plan, or {export.sheet.title} {export.sheet.version}"
        raise FileError(export.file, problem, field=field, value=wanted, allowed=allowed)
    _check_rules(export, settings_with(own), f"{export.sheet.title} {version}")


def _check_rules(export: Export, settings: Settings, title: str) -> None:
    """Refuse a plan whose keys break a rule of the framework's.

    Args:
        title: The framework's, with the version where that is an earlier one.

    Raises:
        FileError: Names the key and the rule.
    """
    for rule in rules_of(settings.sheet.name):
        for broken in rule.broken(settings):
            raise FileError(
                export.file,
                f"{title} would stop: {broken.problem}",
                field=broken.key,
                value=settings.given(broken.key),
                allowed=broken.allowed,
            )


def _of_memory(export: Export, facts: Facts) -> Iterator[str]:
    """Yield what to know where the engine's share and what training keeps are more than the GPUs have."""
    plan = export.plan
    if export.apart:
        return
    placed = PlacedPlan(plan, facts)
    beside = placed.tasks_on(plan.pool(export.generate.pool))
    kept = sum(staying(map(task_memory, beside)).values())
    left = 1 - kept / facts.device(plan.pool(export.generate.pool).device).sheet.memory_bytes
    if export.generate.memory_fraction > left:
        yield (
            f"training keeps {show_bytes(kept)} of each GPU while the engine generates; an engine that takes "
            f"its share whatever else is there, as vLLM does, starts with at most {max(0.0, left):.2f}"
        )


def _imported(plan: Plan, run: Run) -> tuple[Job, PlanDraft]:
    """Return the job and plan that a run amounts to, with the plan's own models and lengths."""
    job, work = plan.job, plan.job.workload
    means = Means(
        response=mean_length(work.response_tokens), prompt=mean_length(work.prompt_tokens)
    )
    found = job_of(run, job.name, job.cluster[0].gpu, means)
    models = {role: job.models[role] for role in run.models if role in job.models}
    played = _played(work, found.workload, run)
    found = replace(found, models=FrozenDict(models), devices=job.devices, workload=played)
    resolved = resolve_job(found, Path(), file="the export")
    # Which version of its engine runs no key says: what that decides by itself is as the plan's own has it.
    own, other = job.engines.generate, resolved.engines.generate
    alike = own is not None and other is not None and family(own) == family(other)
    engines = replace(resolved.engines, generate=own) if alike else resolved.engines
    return resolved, draft_of(run, replace(resolved, engines=engines), "job.yaml")


def _played(own: Workload, found: Workload, run: Run) -> Workload:
    """Return an imported workload with a plan's environments, where it has as many turns and as much room for them."""
    most = max((longest(each.turns) for each in own.environments), default=1)
    if run.work.turns not in {None, most}:
        return found
    played = replace(found, environments=own.environments)
    added = max((each.longest_observations_tokens for each in own.environments), default=0)
    if run.work.turns is None and most == 1 and run.work.turn_response is not None:
        said = run.work.turn_response == longest(own.response_tokens)
        return replace(played, response_tokens=own.response_tokens) if said else played
    room = longest(own.response_tokens) + (added if run.work.max_response_of_all else 0)
    if added and run.work.max_response == room:
        return replace(played, response_tokens=own.response_tokens)
    return played


def _differences(plan: Plan, job: Job, draft: PlanDraft) -> Iterator[tuple[str, object, object]]:
    """Yield fields in which a plan is not what was imported, with both values."""
    yield from _of_jobs(plan.job, job)
    yield from _of_trainers(plan, job)
    for name in ("mode", "staleness", "sync_every", "in_flight"):
        wanted, found = getattr(plan, name), getattr(draft, name)
        if found is None or (name in {"sync_every", "in_flight"} and not plan.flow.is_endless):
            found = wanted if name != "mode" else USUAL_MODE
        if wanted != found:
            yield name, wanted, found
    if plan.lending is not None:
        yield "lending", "idle GPUs that are lent", "none"
    pools = {pool.name: pool for pool in draft.pools}
    for name, layout in plan.tasks.items():
        if plan.pool_of(name).is_host:
            continue
        other = draft.tasks.get(name)
        if other is None:
            yield f"tasks.{name}", "a pass over the model", "none"
            continue
        yield from _of_layouts(plan, name, job, other)
        assert other.pool is not None, "an import pins pools"
        wanted, found = plan.pool(layout.pool), pools[other.pool]
        if wanted.gpus != found.gpus or set(wanted.roles) != set(found.roles):
            yield f"tasks.{name}.pool", _shown(wanted), _shown(found)
    usual = FrozenDict({pool: tuple(_names(plan, pool)) for pool in plan.order})
    yield from (
        (f"order.{pool}", own, usual[pool])
        for pool, own in plan.order.items()
        if own != usual[pool]
    )


def _names(plan: Plan, pool: str) -> Iterator[str]:
    """Yield a pool's tasks in the dataflow's order."""
    known = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    yield from (
        each.name
        for each in known
        if each.name in plan.tasks and plan.tasks[each.name].pool == pool
    )


def _shown(pool: Any) -> str:  # noqa: ANN401 -- a pool, or its draft
    return f"{pool.gpus} GPUs with {', '.join(pool.roles)}"


def _of_layouts(
    plan: Plan, name: str, job: Job, other: TaskDraft
) -> Iterator[tuple[str, object, object]]:
    layout, role = plan.tasks[name], cast(Role, name.partition(".")[0])
    layout = replace(layout, offload=layout.offload and leaves_gpus(plan.job, role))
    if not leaves_gpus(job, role):
        other = replace(other, offload=False)
    # Left open, experts are cut over as many ranks as all else, however many groups there are.
    layout = replace(layout, expert_tp=layout.expert_tp or layout.tp)
    other = replace(other, expert_tp=other.expert_tp or other.tp)
    same = {"pool"}
    if not name.endswith(".generate") or family(str(other.engine)) == family(layout.engine):
        same.add("engine")
    if layout.token_budget is not None:
        same.add("micro_batch")
    for each in fields(TaskDraft):
        wanted, found = getattr(layout, each.name), getattr(other, each.name)
        left = found is None and (each.name in OPEN or wanted is None)
        if each.name not in same and not left and wanted != found:
            yield f"tasks.{name}.{each.name}", wanted, found


def leaves_gpus(job: Job, role: Role) -> bool:
    """Tell whether anything is left to leave the GPUs where a layout off-loads a role: what lives on the host anyway is not."""
    options = job.trainer(role)
    on_host = options.host_states or (
        options.host_optimizer == 1 and states_leaving(job, role) == ("optimizer",)
    )
    return not on_host


def _of_jobs(plan: Job, job: Job) -> Iterator[tuple[str, object, object]]:
    for each in fields(Job):
        wanted, found = getattr(plan, each.name), getattr(job, each.name)
        if each.name not in UNSAID and wanted != found:
            yield f"job.{each.name}", wanted, found
    yield from _of_work(plan, job)
    yield from _of_losses(plan, job)
    for role in plan.models:
        if role in job.models and plan.models[role] != job.models[role]:
            yield f"job.models.{role}", plan.architecture(role).name, job.architecture(role).name
    for role in ("actor", "critic"):
        old, new = (_trained_part(each, role) for each in (plan, job))
        if old != new:
            yield f"job.adapters.{role}", old, new


def _trained_part(job: Job, role: Role) -> str:
    """Return what of a role's model learns, in words."""
    adapter = job.adapter(role)
    return "all weights" if adapter is None else f"an adapter of rank {adapter.rank}"


def _of_trainers(plan: Plan, job: Job) -> Iterator[tuple[str, object, object]]:
    """Yield how trainers keep states and make logits where that differs; which states leave, only where they do."""
    for role in plan.job.models:
        update = plan.tasks.get(f"{role}.update")
        moves = update is not None and update.offload
        wanted, found = (_options(each, role, moves=moves) for each in (plan.job, job))
        of_role = (name for name in plan.tasks if name.startswith(f"{role}.") and name != GENERATE)
        if all(plan.tasks[name].ep == 1 for name in of_role):  # nothing is dispatched
            wanted, found = (
                replace(each, dispatcher=None, overlaps_exchange=False) for each in (wanted, found)
            )
        for each in fields(TrainerOptions):
            asked, got = getattr(wanted, each.name), getattr(found, each.name)
            if asked != got:
                yield f"job.trainers.{role}.{each.name}", asked, got


def _options(job: Job, role: Role, *, moves: bool) -> TrainerOptions:
    """Return a role's options with the states that leave, whoever says so; gradients go with the weights."""
    leaving = states_leaving(job, role) if moves else ()
    told: tuple[State, ...] = ("weights", "optimizer")
    return replace(job.trainer(role), offloads=tuple(state for state in told if state in leaving))


def _of_work(plan: Job, job: Job) -> Iterator[tuple[str, object, object]]:
    before, after = plan.workload, job.workload
    for name in ("prompts", "samples_per_prompt", "updates", "epochs", "over_provisioning", "over_sampling", "environments", "ignore_eos",
                 "longest_sequence_tokens"):  # fmt: skip
        wanted, found = getattr(before, name), getattr(after, name)
        if wanted != found:
            yield f"job.workload.{name}", wanted, found
    wanted, found = longest(before.response_tokens), longest(after.response_tokens)
    if wanted != found:
        yield "job.workload.response_tokens", wanted, found


def _of_losses(plan: Job, job: Job) -> Iterator[tuple[str, object, object]]:
    before, after = losses_of(plan), losses_of(job)
    compared, other = (
        load_algorithm(each.algorithm).uses_reference(each.hyperparameters) for each in (plan, job)
    )
    if compared != other:
        yield "job.hyperparameters.kl_coefficient", compared, other
    unused = OF_CRITICS if "critic" not in plan.models else frozenset()
    unused |= frozenset() if compared else OF_PENALTIES
    for name, wanted in before.items():
        nothing = not wanted and not after[name] and name in OPEN_AS_ZERO
        if name not in unused and not nothing and wanted != after[name]:
            yield f"job.hyperparameters.{name}", wanted, after[name]
