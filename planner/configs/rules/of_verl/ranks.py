"""Rules of verl on parallel sizes."""

from collections.abc import Iterator

from planner.configs.broken import Broken, Subject, divides, unless
from planner.configs.rules.of_verl.world import (
    MEGATRON,
    replica_gpus,
    rollout_gpus,
    sizes_of,
    sizes_of_roles,
)


def replicas_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the rollout's GPUs out to whole replicas of the engine."""
    settings, gpus = subject.settings, rollout_gpus(subject)
    size = replica_gpus(settings)
    problem = f"replicas of TP x DP x PP = {size} GPUs do not divide the rollout's {gpus}"
    yield from unless(
        divides(size, gpus), settings.key_of("rollout_tp"), problem, f"divisors of {gpus}"
    )


def replicas_fill_nodes(subject: Subject) -> Iterator[Broken]:
    """Put equally many GPUs of a replica on each of its nodes."""
    settings = subject.settings
    size, per_node = replica_gpus(settings), settings.whole("gpus_per_node")
    used = min(size, per_node)
    problem = f"a replica of {size} GPUs does not fill nodes of {per_node}"
    yield from unless(
        divides(used, size), settings.key_of("rollout_tp"), problem, f"a multiple of {per_node}"
    )


def tensor_ranks_stay_in_a_node(subject: Subject) -> Iterator[Broken]:
    """Keep the tensor-parallel ranks of a data-parallel engine in one node."""
    settings = subject.settings
    tp, per_node = settings.whole("rollout_tp"), settings.whole("gpus_per_node")
    problem = f"does not divide the {per_node} GPUs of a node, and the engine has DP > 1"
    holds = settings.whole("rollout_dp") == 1 or divides(tp, per_node)
    yield from unless(holds, settings.key_of("rollout_tp"), problem, f"divisors of {per_node}")


def expert_ranks_are_all_of_a_replica(subject: Subject) -> Iterator[Broken]:
    """Share the engine's experts out to all its tensor- and data-parallel ranks."""
    settings = subject.settings
    ep, ranks = (
        settings.whole("rollout_ep"),
        settings.whole("rollout_tp") * settings.whole("rollout_dp"),
    )
    holds = ep in {1, ranks} or settings.word("rollout_engine").startswith("tensorrt")
    yield from unless(
        holds, settings.key_of("rollout_ep"), f"is not TP x DP = {ranks}", f"1 or {ranks}"
    )


def only_tensorrt_pipelines(subject: Subject) -> Iterator[Broken]:
    """Generate without pipeline stages but by TensorRT-LLM."""
    settings = subject.settings
    holds = settings.whole("rollout_pp") == 1 or settings.word("rollout_engine").startswith(
        "tensorrt"
    )
    problem = "pipeline stages are not implemented for this engine"
    yield from unless(holds, settings.key_of("rollout_pp"), problem, "1, or rollout.name=trtllm")


def model_ranks_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the trainer's GPUs out to whole copies of the model."""
    for each in sizes_of_roles(subject):
        size = each.tp * each.pp * each.cp
        name = next((name for name in ("tp", "cp", "pp") if getattr(each, name) > 1), "cp")
        problem = f"TP x PP x CP = {size} of the {each.role} does not divide the {each.gpus} GPUs"
        yield from unless(
            divides(size, each.gpus),
            each.key(subject.settings, name),
            problem,
            f"divisors of {each.gpus}",
        )


def expert_ranks_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        ep = settings.whole_size(each.trainer, each.role, "ep", 1) or 1
        if ep == 1:
            continue
        etp = settings.whole_size(each.trainer, each.role, "expert_tp") or (
            each.tp if each.trainer in MEGATRON else 1
        )
        size = ep * etp * each.pp
        problem = f"ETP x EP x PP = {size} of the {each.role} does not divide the {each.gpus} GPUs"
        yield from unless(
            divides(size, each.gpus), each.key(settings, "ep"), problem, f"divisors of {each.gpus}"
        )


def sequence_ranks_divide_the_heads(subject: Subject) -> Iterator[Broken]:
    """Give every rank of Ulysses' exchange equally many heads."""
    settings, model = subject.settings, subject.actor
    each = sizes_of(settings, "actor")
    if model is None or each.cp == 1 or each.trainer in MEGATRON:
        return
    key = each.key(settings, "cp")
    heads, kv_heads = model.num_heads, model.num_kv_heads
    yield from unless(
        divides(each.cp, heads),
        key,
        f"does not divide the {heads} heads of {model.name}",
        f"divisors of {heads}",
    )
    shared = divides(each.cp, kv_heads) or divides(kv_heads, each.cp)
    problem = f"neither divides the {kv_heads} KV heads of {model.name} nor is a multiple of them"
    yield from unless(shared, key, problem, f"divisors or multiples of {kv_heads}")


def sequence_ranks_want_packing(subject: Subject) -> Iterator[Broken]:
    """Cut sequences over ranks only where padding is removed."""
    settings = subject.settings
    each = sizes_of(settings, "actor")
    holds = each.cp == 1 or each.trainer in MEGATRON or settings.on("packs")
    yield from unless(
        holds, settings.key_of("packs"), "is off, and sequences are cut over ranks", "True"
    )


def shards_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Shard over equal groups of GPUs."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        if each.trainer in MEGATRON:
            continue
        size = settings.whole_size(each.trainer, each.role, "shard_ranks", -1) or -1
        holds = size < 1 or divides(size, each.gpus)
        problem = f"does not divide the {each.gpus} GPUs"
        yield from unless(
            holds, each.key(settings, "shard_ranks"), problem, f"divisors of {each.gpus}, or -1"
        )


def models_come_by_the_bridge(subject: Subject) -> Iterator[Broken]:
    """Load Megatron's models through mbridge."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        if each.trainer == "megatron":
            holds = settings.size(each.trainer, each.role, "bridge") is not False
            yield from unless(
                holds, each.key(settings, "bridge"), "is off, and no other loader is left", "True"
            )
