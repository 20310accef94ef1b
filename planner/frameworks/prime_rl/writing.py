"""prime-rl: a TOML file with the keys that a plan decides, for `uv run rl @ FILE`."""

import json
from collections.abc import Iterator
from typing import Final

from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import with_adapter_sent
from rlplan.planner.configs.writing.export import UPDATE, Export, Value, Variable
from rlplan.planner.frameworks.prime_rl.reading import (
    ALONE,
    FILE_SYSTEM,
    GROUPED,
    NIXL,
    WHOLE_LOGITS,
    WITHOUT_CHUNKS,
)
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.rules.layouts import FULLY_SHARDED

START: Final = "uv run rl"
NOTHING: Final = "None"
SOURCE: Final = "orchestrator.train.source"
ENVIRONMENT: Final = Variable(
    name="ENVIRONMENT", default=None, meaning="id of an environment of verifiers"
)
ALGORITHMS: Final = (GROUPED, ALONE)
OTHERWISE: Final = "learns by another algorithm"
COMPARES: Final = "compares the actor with a reference"
SEVERAL_UPDATES: Final = "learns from a step in several updates"
MODEL_KEY: Final = "model.name"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that takes them."""
    _check(export)
    export.values[MODEL_KEY] = export.model("actor")
    _pools(export)
    _work(export)
    _trainer(export)
    _generation(export)
    _losses(export)
    export.values[f"{SOURCE}.0.env.taskset.id"] = ENVIRONMENT
    return START


def text_of(export: Export, start: str) -> str:
    """Return the file: keys of the top, then a table for each section; a variable stands as its default, or as what it is."""
    lines = [
        export.headline,
        f"# {start} @ FILE",
        *(f"# {note}" for note in export.notes),
    ]
    tables: dict[str, dict[str, Value]] = {}
    for key, value in sorted(export.values.items(), key=lambda each: "." in each[0]):
        table, _, name = key.rpartition(".")
        tables.setdefault(table, {})[name] = value
    for table, values in tables.items():
        lines += [*_heads(table), *(f"{name} = {_toml(each)}" for name, each in values.items())]
    return "\n".join(lines) + "\n"


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as it is, but that engines get an adapter as it is.

    Raises:
        FileError: It learns by another algorithm, in several updates a step, or beside a reference.
    """
    del trainer, way
    losses, work = job.hyperparameters, job.workload
    compares = load_algorithm(job.algorithm).uses_reference(losses)
    found = (
        (
            job.algorithm not in ALGORITHMS,
            "algorithm",
            OTHERWISE,
            job.algorithm,
            ", ".join(ALGORITHMS),
        ),
        (compares, "hyperparameters.kl_in", COMPARES, losses.kl_in, "none"),
        (work.updates > 1, "workload.updates", SEVERAL_UPDATES, work.updates, "1"),
    )
    for broken, where, problem, value, allowed in found:
        if broken:
            said = f"{problem}; {sheet.title} {sheet.version} cannot do that"
            raise FileError("the job", said, field=f"job.{where}", value=value, allowed=allowed)
    return with_adapter_sent(job, "adapter")


def _heads(table: str) -> Iterator[str]:
    """Yield the lines that open a table; that of a list's first table is opened with the list."""
    if not table:
        return
    before, number, inner = table.partition(".0.")
    yield ""
    if number:
        yield f"[[{before}]]"
    yield f"[{before}.{inner}]" if number else f"[{table}]"


def _toml(value: Value) -> str:
    """Return a value as TOML has it, which writes nothing in words."""
    if isinstance(value, Variable):
        return _toml(value.in_file)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    if value is None:
        return json.dumps(NOTHING)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _check(export: Export) -> None:
    """Refuse roles, algorithms, modes and trainers that prime-rl does not have."""
    job, plan = export.plan.job, export.plan
    if job.algorithm not in ALGORITHMS:
        raise export.refused("job.algorithm", OTHERWISE, ", ".join(ALGORITHMS), job.algorithm)
    if export.penalty[0] != "none":
        where = "job.hyperparameters.kl_in"
        raise export.refused(where, COMPARES, "none", export.penalty[0])
    export.check_roles(("actor",))
    if not export.apart:
        problem, where = "generates on the GPUs that train", "tasks.actor.generate.pool"
        raise export.refused(where, problem, "a pool of its own", export.generate.pool)
    if export.resamples:
        problem = "samples groups of equal rewards again"
        raise export.refused("job.dynamic_sampling", problem, "all groups are learnt from")
    if job.workload.updates > 1:
        where = "job.workload.updates"
        raise export.refused(where, SEVERAL_UPDATES, "1", job.workload.updates)
    if plan.flow.overlaps and not plan.flow.is_endless:
        problem = "overlaps iterations without being asynchronous"
        raise export.refused("mode", problem, "sync, async", plan.mode)
    if plan.flow.is_endless and plan.in_flight != "keep":
        problem = "does not go on with responses under way on their cache"
        raise export.refused("in_flight", problem, "keep", plan.in_flight)


def _pools(export: Export) -> None:
    """Write the GPUs that train and generate: of one node, or whole nodes, which Slurm starts."""
    trains, generates = export.pool("actor"), export.plan.pool(export.generate.pool)
    per_node = export.node_gpus(trains)
    export.put("gpus_per_node", per_node)
    if trains.gpus + generates.gpus <= per_node:
        export.put("kind", "single")
        export.put("train_gpus", trains.gpus)
        export.put("rollout_gpus", generates.gpus)
        return
    for pool in (trains, generates):
        if pool.gpus % per_node:
            problem = f"takes nodes of {per_node} GPUs in part"
            allowed = "whole nodes, or both pools in one"
            raise export.refused(f"pools.{pool.name}.gpus", problem, allowed, pool.gpus)
    if per_node % export.generate.tp:
        where, problem = "tasks.actor.generate.tp", f"does not divide nodes of {per_node} GPUs"
        raise export.refused(where, problem, "a divisor", export.generate.tp)
    export.put("kind", "several")
    export.put("train_nodes", trains.gpus // per_node)
    export.put("rollout_nodes", 1)
    export.put("rollout_replicas", generates.gpus // per_node)
    export.values["slurm.job_name"] = export.plan.job.name


def _work(export: Export) -> None:
    work = export.plan.job.workload
    age = export.whole_age("counts versions of the weights, and syncs them after each step")
    export.put("off_policy_steps", age if export.plan.flow.overlaps else 0)
    export.put("batch", work.sequences)
    export.put("samples", work.samples_per_prompt)
    export.put("max_total", work.longest_sequence_tokens)
    export.put("max_response", export.longest_response)
    export.put("max_model_len", work.longest_sequence_tokens)


def _trainer(export: Export) -> None:
    layout, options = export.plan.tasks[UPDATE], export.plan.job.trainer("actor")
    if layout.token_budget is None:
        where, problem = f"tasks.{UPDATE}.token_budget", "counts sequences of a micro-batch"
        raise export.refused(where, problem, "tokens, into which sequences are packed")
    export.put("pack", layout.token_budget)
    _put_attention(export, layout.engine)
    for name in ("tp", "cp", "ep"):
        export.put_size("actor", name, getattr(layout, name))
    export.put_size("actor", "replicas", layout.dp * layout.cp // _sharding(layout))
    export.put_size("actor", "reshards", layout.zero == FULLY_SHARDED)
    export.put_size("actor", "cpu_offload", options.host_states)
    export.put_size("actor", "optimizer_offload", layout.offload)
    if options.host_optimizer:
        export.put("full_offload", True)
    if options.logits == WHOLE_LOGITS:
        export.put("head_chunk", WITHOUT_CHUNKS)
    export.put_size("actor", "model_dtype", options.weights)
    export.put_size("actor", "max_gradient_norm", export.losses["max_gradient_norm"])
    kind = layout.recompute
    if kind == "none":
        export.put("checkpoints", None)
    else:
        export.put("recompute_mode", "selective" if kind == "selective" else "full")
    if kind != "full-offload":
        export.put("recompute_offload", None)
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", float(adapter.alpha or adapter.rank))


def _put_attention(export: Export, engine: str) -> None:
    """Write which attention trains, where the version's usual one does not."""
    setting = export.sheet.settings["train_engine"]
    if setting.values[str(setting.default)] != engine:
        export.put("train_engine", engine)


def _sharding(layout: TaskPlan) -> int:
    return layout.shard_ranks or layout.dp * layout.cp


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    export.engine_word(export.sheet.settings["rollout_engine"].values)
    export.put("rollout_tp", layout.tp)
    if layout.pp > 1:
        where, problem = "tasks.actor.generate.pp", "cuts the engine's model into stages"
        raise export.refused(where, problem, "1", layout.pp)
    if layout.ep > 1:
        export.put("spreads_experts", True)
        export.put("rollout_dp", layout.ep // layout.tp)
    export.put("eager", layout.engine.endswith("-eager"))
    if export.plan.job.rollout_precision is not None:
        export.put("rollout_quantised", export.plan.job.rollout_precision)
    export.put("memory_fraction", layout.memory_fraction)
    export.put("running", layout.max_running)
    word = NIXL if job.weight_sync.between_pools == "prime-rl-nixl" else "nccl"
    export.put("broadcast", FILE_SYSTEM if job.adapter("actor") is not None else word)


def _losses(export: Export) -> None:
    export.put_losses()
    export.put("learning_rate", export.losses["learning_rate"])
    export.put("temperature", export.losses["temperature"])
