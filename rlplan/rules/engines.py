"""Engines: a layout is one that its engine's sheet offers."""

from rlplan.dataflow import Task
from rlplan.errors import nearest_name
from rlplan.rules.layouts import FULLY_SHARDED, cut_heads, divides_heads
from rlplan.rules.rule import ModelContext, Problem, listed, rule
from rlplan.sheets import EngineSheet


def offered_stages(task: Task, zero_stages: tuple[int, ...]) -> set[int]:
    """Return the ZeRO stages that a task can have of those that its engine offers.

    What infers is sharded fully or not at all, and what generates not at all.
    """
    if task.trains:
        return set(zero_stages)
    return {0, *zero_stages} & ({0} if task.generates else {0, FULLY_SHARDED})


def engine_runs(engine: EngineSheet, size: str, value: int) -> bool:
    """Tell whether an engine runs a parallel size: `pp`, `cp` or `ep`."""
    limit = largest_size(engine, size)
    return not limit or value <= limit


def largest_size(engine: EngineSheet, size: str) -> int:
    """Return the largest parallel size that an engine runs; 0 where there is no limit."""
    limits = {"pp": engine.max_pp, "cp": engine.max_cp, "ep": engine.max_ep}
    return limits.get(size, 0)


@rule(ModelContext)
def engine_has_a_sheet(given: ModelContext) -> Problem | None:
    """Name an engine that is known to do the task: training ones infer too."""
    engine_name, engines = given.engine_name, given.engines
    if engine_name is None or engines is None:
        return None
    role = given.task.stage_kind.engine
    sheet = engines.get(engine_name)
    if sheet is not None and sheet.role == role:
        return None
    known = [name for name, each in engines.items() if each.role == role]
    nearest = nearest_name(engine_name, known)
    return Problem("engine", "no such engine", engine_name, listed(known), nearest)


def running_engine(given: ModelContext) -> EngineSheet | None:
    """Return the engine that computes a task: of a served model the one that serves it; None where it is not known."""
    serving = given.job.serving_engine(given.task.role)
    if serving is None or given.engines is None or given.task.kind != "infer":
        return given.engine
    return given.engines.get(serving)


@rule(ModelContext)
def engine_runs_the_sizes(given: ModelContext) -> Problem | None:
    """Cut a model only in ways that its engine runs."""
    engine = running_engine(given)
    if engine is None:
        return None
    for size in ("pp", "cp", "ep"):
        value = getattr(given.layout, size)
        if value is not None and not engine_runs(engine, size, value):
            words = f"engine {engine.name} does not run it"
            return Problem(size, words, value, f"at most {largest_size(engine, size)}")
    return None


@rule(ModelContext)
def engine_replicates_kv_heads(given: ModelContext) -> Problem | None:
    """Cut between KV heads where the engine gives no rank a copy of another's."""
    tp, model, engine = given.tp, given.model, running_engine(given)
    if tp is None or engine is None or engine.replicates_kv_heads or divides_heads(tp, model):
        return None
    if not divides_heads(tp, model, replicated=True):
        return None  # the rule of heads says so, whatever the engine
    words, allowed = cut_heads(model, replicated=False)
    return Problem("tp", f"{words}, and engine {engine.name} copies none", tp, allowed)


@rule(ModelContext)
def engine_shares_out_heads(given: ModelContext) -> Problem | None:
    """Give every context-parallel rank equally many heads where the engine exchanges heads."""
    cp, tp, model, engine = given.cp, given.tp, given.model, given.engine
    if cp is None or tp is None or engine is None:
        return None
    if cp == 1 or engine.context_exchange != "ulysses":
        return None
    if divides_heads(tp * cp, model, replicated=True):
        return None
    words = (
        f"x tp {tp} = {tp * cp} does not divide the {model.num_heads} heads and "
        f"{model.num_kv_heads} KV heads of {model.name}, which engine {engine.name} exchanges"
    )
    return Problem("cp", words, cp)


@rule(ModelContext)
def engine_has_whole_experts(given: ModelContext) -> Problem | None:
    """Cut experts over fewer ranks than all else where the engine does."""
    expert_tp, tp, engine = given.expert_tp, given.tp, running_engine(given)
    if expert_tp is None or tp is None or engine is None:
        return None
    if expert_tp == tp or engine.whole_experts:
        return None
    return Problem(
        "expert_tp", f"engine {engine.name} cuts experts as all else", expert_tp, str(tp)
    )


@rule(ModelContext)
def zero_stage_is_offered(given: ModelContext) -> Problem | None:
    """Shard over copies of the model what the engine can, and nothing of what generates."""
    zero, stages = given.zero, sorted(offered_stages(given.task, given.zero_stages))
    if zero is None or given.engine_name is None or zero in stages:
        return None
    words = f"engine {given.engine_name} does not offer it"
    if given.task.generates:
        words = "is for training and inference: what generates is not sharded"
    return Problem("zero", words, zero, listed(stages))


@rule(ModelContext)
def recomputation_is_offered(given: ModelContext) -> Problem | None:
    """Compute again what the engine can drop."""
    recompute, engine = given.recompute, given.engine
    if recompute is None or engine is None or not given.task.trains:
        return None
    offered = tuple(dict.fromkeys((*engine.recompute_modes, *engine.recompute_besides)))
    if recompute in offered:
        return None
    words = f"engine {engine.name} does not offer it"
    return Problem("recompute", words, recompute, listed(offered))


@rule(ModelContext)
def engine_interleaves(given: ModelContext) -> Problem | None:
    """Interleave where the engine's schedule does."""
    chunks, engine = given.chunks, given.engine
    if chunks is None or engine is None or chunks == 1 or engine.interleaves:
        return None
    return Problem("chunks", f"engine {engine.name} does not interleave stages", chunks, "1")
