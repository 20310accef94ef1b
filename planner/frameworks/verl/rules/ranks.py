"""Rules of verl on parallel sizes."""

from collections.abc import Iterator

from rlplan.planner.configs.broken import Broken, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.verl.rules.world import (
    MEGATRON,
    is_tensorrt,
    replica_gpus,
    rollout_gpus,
    sizes_of,
    sizes_of_roles,
)


def replicas_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the rollout's GPUs out to whole replicas of the engine."""
    size, gpus = replica_gpus(settings), rollout_gpus(settings)
    problem = f"replicas of TP x DP x PP = {size} GPUs do not divide the rollout's {gpus}"
    yield from unless(divides(size, gpus), "rollout_tp", problem, f"divisors of {gpus}")


def replicas_fill_nodes(settings: Settings) -> Iterator[Broken]:
    """Put equally many GPUs of a replica on each of its nodes."""
    size, per_node = replica_gpus(settings), settings.whole("gpus_per_node")
    holds = divides(min(size, per_node), size)
    problem = f"a replica of {size} GPUs does not fill nodes of {per_node}"
    yield from unless(holds, "rollout_tp", problem, f"a multiple of {per_node}")


def tensor_ranks_stay_in_a_node(settings: Settings) -> Iterator[Broken]:
    """Keep the tensor-parallel ranks of a data-parallel engine in one node."""
    tp, per_node = settings.whole("rollout_tp"), settings.whole("gpus_per_node")
    problem = f"does not divide the {per_node} GPUs of a node, and the engine has DP > 1"
    holds = settings.whole("rollout_dp") == 1 or divides(tp, per_node)
    yield from unless(holds, "rollout_tp", problem, f"divisors of {per_node}")


def expert_ranks_are_all_of_a_replica(settings: Settings) -> Iterator[Broken]:
    """Share the engine's experts out to all its tensor- and data-parallel ranks."""
    ranks = settings.whole("rollout_tp") * settings.whole("rollout_dp")
    holds = settings.whole("rollout_ep") in {1, ranks} or is_tensorrt(settings)
    yield from unless(holds, "rollout_ep", f"is not TP x DP = {ranks}", f"1 or {ranks}")


def only_tensorrt_pipelines(settings: Settings) -> Iterator[Broken]:
    """Generate without pipeline stages but by TensorRT-LLM."""
    holds = settings.whole("rollout_pp") == 1 or is_tensorrt(settings)
    problem = "pipeline stages are not implemented for this engine"
    yield from unless(holds, "rollout_pp", problem, "1, or rollout.name=trtllm")


def model_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the trainer's GPUs out to whole copies of the model."""
    for each in sizes_of_roles(settings):
        size = each.tp * each.pp * each.cp
        name = next((name for name in ("tp", "cp", "pp") if getattr(each, name) > 1), "cp")
        problem = f"TP x PP x CP = {size} of the {each.role} does not divide the {each.gpus} GPUs"
        holds = divides(size, each.gpus)
        yield from unless(holds, each.key_of(name), problem, f"divisors of {each.gpus}")


def expert_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    for each in sizes_of_roles(settings):
        ep = each.whole("ep")
        if ep == 1:
            continue
        etp = each.whole("expert_tp", each.tp if each.trainer in MEGATRON else 1)
        size = ep * etp * each.pp
        problem = f"ETP x EP x PP = {size} of the {each.role} does not divide the {each.gpus} GPUs"
        holds = divides(size, each.gpus)
        yield from unless(holds, each.key_of("ep"), problem, f"divisors of {each.gpus}")


def sequence_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give every rank of Ulysses' exchange equally many heads."""
    model, each = actor_of(settings), sizes_of(settings, "actor")
    if model is None or each.cp == 1 or each.trainer in MEGATRON:
        return
    key, heads, kv_heads = each.key_of("cp"), model.num_heads, model.num_kv_heads
    problem = f"does not divide the {heads} heads of {model.name}"
    yield from unless(divides(each.cp, heads), key, problem, f"divisors of {heads}")
    shared = divides(each.cp, kv_heads) or divides(kv_heads, each.cp)
    problem = f"neither divides the {kv_heads} KV heads of {model.name} nor is a multiple of them"
    yield from unless(shared, key, problem, f"divisors or multiples of {kv_heads}")


def sequence_ranks_want_packing(settings: Settings) -> Iterator[Broken]:
    """Cut sequences over ranks only where padding is removed."""
    each = sizes_of(settings, "actor")
    holds = each.cp == 1 or each.trainer in MEGATRON or settings.on("packs")
    yield from unless(holds, "packs", "is off, and sequences are cut over ranks", "True")


def shards_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Shard over equal groups of GPUs."""
    for each in sizes_of_roles(settings):
        if each.trainer in MEGATRON:
            continue
        size = each.whole("shard_ranks", -1)
        holds = size < 1 or divides(size, each.gpus)
        problem, allowed = (
            f"does not divide the {each.gpus} GPUs",
            f"divisors of {each.gpus}, or -1",
        )
        yield from unless(holds, each.key_of("shard_ranks"), problem, allowed)


def models_come_by_the_bridge(settings: Settings) -> Iterator[Broken]:
    """Load Megatron's models through mbridge."""
    for each in sizes_of_roles(settings):
        if each.trainer == "megatron":
            holds = each.value("bridge") is not False
            problem = "is off, and no other loader is left"
            yield from unless(holds, each.key_of("bridge"), problem, "True")
