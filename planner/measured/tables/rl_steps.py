"""Measured steps of RL frameworks, with their stages where they are published.

Nothing is calibrated: settings and lengths are the published ones, all else is the framework's sheet.
Steps of asynchronous modes are played as what they are: `rlplan.planner.measured.framework_runs`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlplan.calibration import NO_CALIBRATION, STAGE_TASKS, Calibration
from rlplan.errors import UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, OldLogProb, Role
from rlplan.models import Precision
from rlplan.plan import Plan
from rlplan.planner.measured.framework_runs import (
    FRAMEWORKS_OWN,
    PublishedRun,
    UnknownSettingError,
    device_sheet,
    job_of,
    model_sheet,
    overlap_of,
    plan_of,
)
from rlplan.planner.measured.rows import Record, TableReader, estimate_of, forecast_row, skipped_row
from rlplan.profiles.catalog import engine_names, load_model
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_framework, sheet_names
from rlplan.results.accuracy import Row, StageSeconds
from rlplan.results.forecast import Forecast
from rlplan.simulator.costs.taskcost import DRIVER, STATES_AWAY, STATES_BACK
from rlplan.simulator.observations import path_seconds_of
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.workload import Lengths, Logged

COLUMNS = ("id", "grade", "framework", "step_s", "on_policy_ratio_forced", "staleness_fraction")
# Sheets by the names of framework and trainer in the table, and by the first words of its version.
FRAMEWORKS = {
    ("verl", "fsdp"): "verl-fsdp",
    ("verl", "fsdp2"): "verl-fsdp",
    ("verl", "megatron"): "verl-megatron",
    ("nemo-rl", "megatron"): "nemo-rl-megatron",
    ("nemo-rl", "fsdp2"): "nemo-rl-dtensor",
    ("openrlhf", "deepspeed"): "openrlhf",
    ("skyrl", "fsdp2"): "skyrl-fsdp",
    ("skyrl", "megatron"): "skyrl-megatron",
    ("slime", "megatron"): "slime",
    ("areal", "fsdp2"): "areal",
    ("prime-rl", "fsdp2"): "prime-rl",
}
# Versions of a framework that have a sheet of their own where a trainer has it: its ending, and how their names begin.
OLDER = {
    "verl": (("0.2", ("0.1", "0.2", "0.3")), ("0.6", ("0.4", "0.5", "0.6"))),
    "nemo-rl": (
        ("0.3", ("0.2", "0.3")),
        ("0.4", ("0.4",)),
        ("0.5", ("0.5",)),
        ("0.6", ("0.6",)),
    ),
    "skyrl": (("0.0", ("train-0.",)), ("0.2", ("0.1", "0.2"))),
}
WHOLE = ("gpus", "prompts", "samples_per_prompt")
NEEDED = (*WHOLE, "mean_response")
# Where a step's sheet of lengths has no prompts: those of the mathematics sets that most rows train on.
MEAN_PROMPT = 128.0
HOST_ADAM = "the optimizer steps on the hosts, which plans of this table do not say"
NEMO = "nemo-rl"
ROUNDS = r"rounds of (\d+(?:\.\d+)?) x"  # in a row's notes, of its prompts
EAGER = "-eager"
MICRO_BATCH = r"micro_batch: (?:train )?(\d+)"  # in a row's notes
# verl's examples with long responses pack by tokens (use_dynamic_bsz in its scripts of one_step_off, fully_async
# and V1), so that is taken where a row has neither a micro-batch nor a budget.
PACKS_ELSE = "verl"
# All of verl's Megatron examples of Qwen3.5 in grpo_trainer/ at 1dda039b leave GPUs' rows unpacked (use_remove_padding=False), since
# Megatron-Core packs no gated delta nets before 0.18, and have cuDNN's attention (attention_backend=auto); a rank pads its rows to their longest.
PADS_LINEAR, PADDED = "verl-megatron", "megatron-core-2025-padded-to-rank"
# 24 of 32 Megatron examples of models with experts in verl 1dda039b compute whole layers again
# (recompute_granularity=full), 2 of 21 of dense ones do.
RECOMPUTES_EXPERTS = "verl-megatron"
# Examples of verl off-load all states of models that do not fit otherwise.
OFF_LOADED = "states are taken to be off-loaded where they do not fit otherwise"
# verl times the weight sync as a part of `gen` where both share GPUs (README of the table).
GEN_HAS_SYNC = "verl"


def rows_of(record: Record, site: Calibration = NO_CALIBRATION) -> Iterator[Row]:
    """Yield the step of a record, or why it has no forecast."""
    label, kind = _label(record), f"{record['framework']}, {record['mode']}"
    measured = _seconds(record["step_s"])
    try:
        run = run_of(record)
        plan, forecast, note = _forecast(run, site, says_offload=bool(record["offload"]))
    except (UnknownSettingError, UserError) as error:
        yield skipped_row(label, str(error), kind=kind, measured_seconds=measured)
        return
    if measured is None:
        yield skipped_row(label, "the step is not published", kind=kind)
        return
    row = forecast_row(
        label,
        measured,
        estimate_of(forecast) * run.parts,
        kind=kind,
        group=f"{record['framework'].lower()}, {device_sheet(record['gpu'])}",
        stages=_stages(record, plan, forecast, run.parts),
        note=note,
    )
    if plan.flow.overlaps:
        path = path_seconds_of(forecast).items()
        each = FrozenDict({name: seconds * run.parts for name, seconds in path})
        row = replace(row, path_seconds=each)
    yield row


def _forecast(
    run: PublishedRun, site: Calibration, *, says_offload: bool
) -> tuple[Plan, Forecast, str]:
    """Return a run's plan and forecast, and what was assumed where its settings do not say it.

    Args:
        says_offload: Whether the run's settings say what is off-loaded.
    """
    job = job_of(run)
    facts = load_facts(job).with_calibration(site)
    plan = plan_of(run, job)
    forecast = simulate(plan, facts)
    if forecast.feasible or says_offload:
        return plan, forecast, ""
    away = plan_of(replace(run, offloads=frozenset(job.models)), job)
    other = simulate(away, facts)
    if other.free_fraction <= forecast.free_fraction:
        return plan, forecast, ""
    return away, other, OFF_LOADED


def _label(record: Record) -> str:
    version = f" {record['version']}" if record["version"] else ""
    where = f"{record['gpus']} {record['gpu']}"
    return f"{record['framework']}{version} {record['model']} on {where}, {record['mode']}"


def run_of(record: Record) -> PublishedRun:
    """Return the settings of a record.

    Raises:
        UnknownSettingError: Something that a step depends on was not published.
    """
    for name in NEEDED:
        if not record[name]:
            raise UnknownSettingError(f"{name.replace('_', ' ')}: not published")
    framework = _framework(record)
    overlap = overlap_of(record, load_framework(framework))
    gpus, prompts, samples = (_whole(record[name]) or 0 for name in WHOLE)
    return PublishedRun(
        framework=framework,
        engines=_engines(record, framework),
        algorithm=_algorithm(record),
        model=record["model"],
        gpu=record["gpu"],
        gpus=gpus,
        gpus_per_node=_whole(record["gpus_per_node"]),
        mode=overlap.mode,
        parts=overlap.parts,
        staleness=overlap.staleness,
        in_flight=overlap.in_flight,
        train_gpus=_whole(record["train_gpus"]) or 0,
        rollout_gpus=_whole(record["rollout_gpus"]) or 0,
        prompts=prompts,
        samples=samples,
        rounds=_rounds(record),
        sequences_per_update=_whole(record["sequences_per_update"]) or prompts * samples,
        prompt_tokens=_prompts(record),
        response_tokens=_responses(record),
        longest_tokens=_longest(record),
        max_total_tokens=_whole(record["max_total"]),
        tp=_whole(record["train_tp"]) or 1,
        pp=_whole(record["train_pp"]) or 1,
        cp=_whole(record["train_cp"]) or _whole(record["train_ulysses"]) or 1,
        ep=_whole(record["train_ep"]) or 1,
        shard_ranks=_shard_ranks(record),
        rollout_tp=_whole(record["rollout_tp"]) or 1,
        rollout_pp=_whole(record["rollout_pp"]) or 1,
        rollout_memory_fraction=_number(record["rollout_memory_fraction"]),
        micro_batch=_noted(record, "micro_batch", MICRO_BATCH),
        log_prob_micro_batch=_noted(record, "log_prob_micro_batch", r"logprob (\d+)|(\d+) logprob"),
        token_budget=_whole(record["token_budget"]),
        precision=_narrow(record["precision"], trains=True),
        rollout_precision=_narrow(record["precision"], trains=False),
        packs=_packs(record, framework),
        recomputes=_recomputes(record, framework),
        old_log_prob=_old_log_prob(record) or overlap.old_log_prob,
        compares_reference=_compares(record, framework),
        has_critic=record["algorithm"].upper() == "PPO",
        offloads=_offloads(record, framework),
        last_stage_layers=_last_stage(record),
    )


def _rounds(record: Record) -> float:
    """Return how many times a step's prompts are generated, as a row's notes say it."""
    found = re.search(ROUNDS, record["notes"])
    return float(found[1]) if found else 1.0


def _old_log_prob(record: Record) -> OldLogProb | None:
    return "engine" if record["on_policy_ratio_forced"] == "True" else None


def _compares(record: Record, framework: str) -> bool:
    """Return whether a reference model is passed over; the sheet of DAPO has none, though NeMo-RL computes it there too."""
    return bool(record["ref_s"]) or (framework.startswith(NEMO) and _rounds(record) == 1)


def _algorithm(record: Record) -> str:
    """Return the algorithm's sheet; groups are sampled again where a row says how often."""
    if record["algorithm"].upper() == "PPO":
        return "ppo"
    return "dapo" if _rounds(record) > 1 else "grpo"


def _engines(record: Record, framework: str) -> Engines:
    """Return the engines that are not the framework's own: without graphs where a row's notes say so."""
    usual = load_framework(framework).engines.generate
    eager = f"{usual}{EAGER}"
    says = "enforce_eager" in record["notes"] and eager in engine_names()
    own = Engines(generate=eager) if says else FRAMEWORKS_OWN
    return replace(own, train=PADDED) if _pads(record, framework) else own


def _pads(record: Record, framework: str) -> bool:
    if framework != PADS_LINEAR or record["packing"] == "True":
        return False
    return load_model(model_sheet(record["model"])).linear is not None


def _packs(record: Record, framework: str) -> bool:
    if _pads(record, framework):
        return False
    sized = _noted(record, "micro_batch", MICRO_BATCH)
    usual = framework.startswith(PACKS_ELSE) and sized is None
    return record["packing"] == "True" or framework.startswith(NEMO) or usual


def _recomputes(record: Record, framework: str) -> bool | None:
    """Return whether a run computes layers again; None is the framework's usual choice."""
    if record["recompute"] in ("True", "False"):
        return record["recompute"] == "True"
    if framework != RECOMPUTES_EXPERTS:
        return None
    return load_model(model_sheet(record["model"])).num_experts > 0 or None


def _framework(record: Record) -> str:
    key = (record["framework"].lower(), record["trainer"].lower())
    if not key[1]:
        raise UnknownSettingError("trainer: not published")
    if key not in FRAMEWORKS:
        raise UnknownSettingError(f"no sheet is of {key[0]} with {key[1]}")
    sheet = FRAMEWORKS[key]
    version = record["version"].lower().lstrip("v")
    older = (
        f"{sheet}-{ending}" for ending, names in OLDER.get(key[0], ()) if version.startswith(names)
    )
    return next((name for name in older if name in sheet_names("frameworks")), sheet)


def _narrow(cell: str, *, trains: bool) -> Precision | None:
    """Return the format narrower than 16 bits that training, or generation, is said to have.

    NeMo-RL's recipes with fp8 train and generate in it; others say which of both.
    """
    words = cell.lower()
    if "fp8" not in words or (trains and ("rollout" in words or "gen" in words)):
        return None
    return "mxfp8" if "mxfp8" in words else "fp8"


def _whole(cell: str) -> int | None:
    """Return a whole number; None for an empty cell.

    Raises:
        UnknownSettingError: The cell says something else.
    """
    number = _number(cell)
    return None if number is None else round(number)


def _number(cell: str) -> float | None:
    """Return a number; None for an empty cell.

    Raises:
        UnknownSettingError: The cell says something else.
    """
    try:
        return float(cell) if cell else None
    except ValueError:
        raise UnknownSettingError(f"{cell} is no number") from None


def _seconds(cell: str) -> float | None:
    """Return seconds, the middle of a range ("5.5-6.0"); None for an empty cell, or for other words."""
    try:
        ends = [float(end) for end in cell.split("-")]
    except ValueError:
        return None
    return sum(ends) / len(ends)


def _noted(record: Record, column: str, pattern: str) -> int | None:
    """Return a number of a column, or else of the row's notes."""
    found = None if record[column] else re.search(pattern, record["notes"])
    if found is None:
        return _whole(record[column])
    return int(next(group for group in found.groups() if group))


def _shard_ranks(record: Record) -> int | None:
    """Return the ranks of a group of FSDP's hybrid sharding; None where all ranks are one."""
    size = _whole(record["fsdp_size"])
    gpus = _whole(record["train_gpus"] or record["gpus"]) or 0
    return size if size is not None and size < gpus else None


def _last_stage(record: Record) -> int | None:
    found = re.search(r"last stage (\d+) layers", record["train_text"])
    return int(found[1]) if found else None


def _prompts(record: Record) -> Lengths:
    mean = _number(record["mean_prompt"]) or MEAN_PROMPT
    most = _whole(record["max_prompt"])
    return round(mean) if most is None or most <= mean else Logged(mean=mean, max=most)


def _responses(record: Record) -> Lengths:
    mean, most = _number(record["mean_response"]) or 1.0, _whole(record["max_response"])
    if most is None and not record["max_total"]:
        return round(mean)
    return Logged(mean=mean, max=most)


def _longest(record: Record) -> int:
    if record["max_total"]:
        return _whole(record["max_total"]) or 0
    prompt, response = _whole(record["max_prompt"]), _whole(record["max_response"])
    if response is None:
        return round(_number(record["mean_response"]) or 1.0)
    return (prompt or round(MEAN_PROMPT)) + response


def _offloads(record: Record, framework: str) -> frozenset[Role]:
    """Return whose states leave the GPUs between uses; NeMo-RL's do while the same GPUs generate.

    Raises:
        UnknownSettingError: The optimizer steps on the host.
    """
    text = record["offload"].lower()
    if "cpu" in text:
        raise UnknownSettingError(HOST_ADAM)
    found: set[Role] = set()
    if "ref yes" in text or text == "ref":
        found.add("reference")
    if text == "yes" or "actor yes" in text or "optimizer" in text:
        found |= {"actor", "critic", "reference"}
    if framework.startswith(NEMO):
        found |= {"reference"} if record["rollout_gpus"] else {"actor", "reference"}
    return frozenset(found)


# Columns of stages, and their names.
STAGES: Mapping[str, str] = {
    "gen_s": "generation",
    "old_log_prob_s": "old_log_prob",
    "ref_s": "reference",
    "values_s": "values",
    "update_critic_s": "update_critic",
    "update_actor_s": "update_actor",
    "weight_sync_s": "weight_sync",
}
# What NeMo-RL times together.
BOTH_LOG_PROBS = ("old_log_prob", "reference")


def _stages(
    record: Record, plan: Plan, forecast: Forecast, parts: int
) -> FrozenDict[str, StageSeconds]:
    """Return what each stage took and was forecast to take.

    How long trainers waited for generation says nothing of how long it took.

    Args:
        parts: Of a step, each an iteration of the forecast.
    """
    seconds = {each.name: each.seconds - each.parts.get(DRIVER, 0.0) for each in forecast.costs}
    if record["framework"].lower() == NEMO:
        # Its timer of the weight sync has the trainer's states on their way to the host; none has them come back.
        back, away = (
            sum(each.parts.get(part, 0.0) for each in forecast.costs)
            for part in (STATES_BACK, STATES_AWAY)
        )
        seconds["actor.update"] -= back + away
        seconds[TRANSITION] = seconds.get(TRANSITION, 0.0) + away
    found: dict[str, StageSeconds] = {}
    for column, name in STAGES.items():
        tasks = STAGE_TASKS[name]
        if name in BOTH_LOG_PROBS and record["framework"].lower() == NEMO:
            name, tasks = "log_probs", tuple(STAGE_TASKS[each][0] for each in BOTH_LOG_PROBS)
        inner: dict[str, float] = {}
        if name == "generation" and not plan.flow.overlaps and _gen_has_sync(record):
            inner["weight_sync"] = seconds.get(TRANSITION, 0.0)
        predicted = (sum(seconds.get(task, 0.0) for task in tasks) + sum(inner.values())) * parts
        waited = name == "generation" and plan.flow.overlaps
        if not predicted or (name in found and not record[column]):
            continue
        measured = None if waited else _seconds(record[column])
        engine = next((plan.tasks[task].engine for task in tasks if task in plan.tasks), "")
        found[name] = StageSeconds(
            measured_seconds=measured,
            forecast_seconds=predicted,
            engine=engine,
            inner_seconds=FrozenDict(inner),
        )
    return FrozenDict(found)


def _gen_has_sync(record: Record) -> bool:
    return record["framework"].lower() == GEN_HAS_SYNC and bool(record["gen_s"])


READER = TableReader(
    about=(
        "Seconds of whole steps of verl, NeMo-RL and others, and of their stages. Given: the published "
        "layouts, batches and mean lengths; the spread of lengths, host times and engines are the sheets'."
    ),
    columns=frozenset(COLUMNS),
    rows_of=rows_of,
    calibrated_rows_of=rows_of,
)
