"""Layouts against models: parallel sizes divide what they cut, and weights lie in one way."""

from functools import lru_cache
from math import gcd, isqrt, prod
from typing import Final

from rlplan.dataflow import DISTRIBUTIONS, Task
from rlplan.job import Job
from rlplan.layout import layers_of_stages
from rlplan.models import ModelArchitecture
from rlplan.plan import SIZES, TaskPlan
from rlplan.rules.rule import ModelContext, Problem, TaskContext, listed, rule

# What a layout may leave open, which means something by itself.
OPEN: Final = ("expert_tp", "first_stage_layers", "last_stage_layers")
FULLY_SHARDED: Final = 3  # the ZeRO stage in which weights are sharded over copies of the model


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


def divides_heads(tp: int, model: ModelArchitecture, *, replicated: bool = False) -> bool:
    """Tell whether tensor parallelism of a size cuts between attention heads.

    Args:
        replicated: Whether ranks beyond the KV heads may share copies of them, equally many each.
    """
    shared = replicated and tp % model.num_kv_heads == 0
    return model.num_heads % tp == 0 and (model.num_kv_heads % tp == 0 or shared)


def divides_mlp(tp: int, model: ModelArchitecture) -> bool:
    """Tell whether tensor parallelism of a size cuts the MLP, or each expert's, in equal parts."""
    return (model.moe_ffn_size if model.num_experts else model.ffn_size) % tp == 0


def divides_layers(pp: int, model: ModelArchitecture) -> bool:
    """Tell whether pipeline stages of a number have equally many layers."""
    return model.num_layers % pp == 0


def fits_model(tp: int, pp: int, model: ModelArchitecture) -> bool:
    """Tell whether tensor and pipeline parallelism of these sizes cut a model in equal parts."""
    return divides_heads(tp, model) and divides_mlp(tp, model) and divides_layers(pp, model)


def leaves_between(pp: int, model: ModelArchitecture, first: int | None, last: int | None) -> bool:
    """Tell whether a pipeline whose first and last stage have so many layers has some for all others, and a stage for all layers."""
    if first is None and last is None:
        return True
    left = model.num_layers - (first or 0) - (last or 0)
    between = pp - (first is not None) - (last is not None)
    return pp > 1 and (between == left == 0 or 0 < between <= left)


def divides_experts(ep: int, model: ModelArchitecture) -> bool:
    """Tell whether expert parallelism of a size leaves each rank equally many experts."""
    return ep == 1 or (model.num_experts > 0 and model.num_experts % ep == 0)


@rule(ModelContext)
def tp_divides_the_heads(given: ModelContext) -> Problem | None:
    """Compute a head on one rank, with the keys and values that it reads or a copy of them."""
    tp, model = given.tp, given.model
    if tp is None or divides_heads(tp, model, replicated=True):
        return None
    words, allowed = cut_heads(model, replicated=True)
    return Problem("tp", words, tp, allowed)


def cut_heads(model: ModelArchitecture, *, replicated: bool) -> tuple[str, str]:
    """Return in words what a tensor-parallel size cuts through, and the sizes that do not."""
    words = (
        f"does not divide the {model.num_heads} heads and {model.num_kv_heads} KV heads of "
        f"{model.name}"
    )
    sizes = divisors(model.num_heads)
    fit = (size for size in sizes if divides_heads(size, model, replicated=replicated))
    return words, listed(fit)


@rule(ModelContext)
def tp_divides_the_mlp(given: ModelContext) -> Problem | None:
    """Give every rank an equal part of the MLP: exchanges inside a group are of one size."""
    tp, layout, model = given.tp, given.layout, given.model
    if tp is None or divides_mlp((layout.expert_tp or tp) if model.num_experts else tp, model):
        return None
    width = model.moe_ffn_size if model.num_experts else model.ffn_size
    sizes = (size for size in divisors(width) if divides_heads(size, model))
    return Problem(
        "tp", f"does not divide the MLP width {width} of {model.name}", tp, listed(sizes)
    )


@rule(ModelContext)
def tp_stays_in_a_node(given: ModelContext) -> Problem | None:
    """Keep the exchanges of every layer on the fast links inside a node, where the engine wants it."""
    tp, gpus_per_node, engine = given.tp, given.gpus_per_node, given.engine
    if tp is None or gpus_per_node is None or engine is None:
        return None
    if tp <= gpus_per_node or engine.tp_leaves_nodes:
        return None
    return Problem("tp", "leaves the node", tp, f"at most {gpus_per_node} (GPUs per node)")


@rule(ModelContext)
def every_stage_has_a_layer(given: ModelContext) -> Problem | None:
    """Give every pipeline stage something to do."""
    pp, model = given.pp, given.model
    if pp is None or pp <= model.num_layers:
        return None
    words = f"has more stages than the {model.num_layers} layers of {model.name}"
    return Problem("pp", words, pp, f"at most {model.num_layers}")


@rule(ModelContext)
def stages_are_equal(given: ModelContext) -> Problem | None:
    """Give every stage equally many layers where the engine has no others."""
    pp, model, engine = given.pp, given.model, given.engine
    if pp is None or engine is None or not engine.equal_parts or divides_layers(pp, model):
        return None
    words = (
        f"does not divide the {model.num_layers} layers of {model.name}, and stages of engine "
        f"{engine.name} are equal"
    )
    return Problem("pp", words, pp, listed(divisors(model.num_layers)))


@rule(ModelContext)
def ends_leave_layers_between_them(given: ModelContext) -> Problem | None:
    """Say the layers of a first and last stage so that all others have some, and all layers a stage."""
    task, layout, pp, model = given.task, given.layout, given.pp, given.model
    if pp is None:
        return None
    first, last = layout.first_stage_layers, layout.last_stage_layers
    if first is None and last is None:
        return None
    field = "first_stage_layers" if first is not None else "last_stage_layers"
    if task.generates or pp == 1:
        return Problem(field, "is for a pipeline that infers or trains", getattr(layout, field))
    if leaves_between(pp, model, first, last):
        return None
    said, ends = (first or 0) + (last or 0), (first is not None) + (last is not None)
    left, between = model.num_layers - said, pp - ends
    words = (
        f"leaves {left} of the {model.num_layers} layers of {model.name} to {between} other stages"
    )
    return Problem(field, words, said)


def keeps_whole_rows(task: Task, job: Job) -> bool:
    """Tell whether a task makes or compares whole distributions, which lie on one GPU for every token."""
    return job.compares_all and DISTRIBUTIONS in (*task.inputs, *task.outputs)


@rule(ModelContext)
def whole_distributions_are_not_cut(given: ModelContext) -> Problem | None:
    """Have both models' logits of a token on one GPU where whole distributions are compared."""
    if not keeps_whole_rows(given.task, given.job):
        return None
    for size in ("tp", "pp", "cp"):
        value = given.sizes.get(size, 1)
        if value > 1:
            words = "cuts what job.teacher.top_tokens: all compares on one GPU"
            return Problem(size, words, value, "1")
    return None


@rule(ModelContext)
def ep_divides_the_experts(given: ModelContext) -> Problem | None:
    """Give every rank equally many experts."""
    ep, model = given.ep, given.model
    if ep is None or divides_experts(ep, model):
        return None
    words = f"needs a model with experts that it divides; {model.name} has {model.num_experts}"
    return Problem(
        "ep", words, ep, listed(divisors(model.num_experts)) if model.num_experts else "1"
    )


@rule(ModelContext)
def experts_divide_the_ranks(given: ModelContext) -> Problem | None:
    """Share experts out over the ranks of a stage: each group of expert parallelism is as large."""
    tp, cp, dp, ep = given.tp, given.cp, given.dp, given.ep
    if tp is None or cp is None or dp is None or ep is None or given.pp is None:
        return None
    width = given.layout.expert_tp or tp
    if tp * cp * dp % (width * ep) == 0:
        return None
    if width == tp:
        words, allowed = f"does not divide the {dp} data-parallel ranks", listed(divisors(dp))
        if cp > 1:
            words = f"does not divide cp {cp} x dp {dp} = {cp * dp} ranks"
            allowed = listed(divisors(cp * dp))
        return Problem("ep", words, ep, allowed)
    ranks = tp * cp * dp
    words = (
        f"x expert_tp {width} = {ep * width} does not divide tp {tp} x cp {cp} x dp {dp} = {ranks}"
    )
    return Problem("ep", words, ep)


@rule(ModelContext)
def expert_tp_divides_tp(given: ModelContext) -> Problem | None:
    """Cut experts over ranks of one tensor-parallel group, all of them or equally many."""
    expert_tp, tp, model = given.expert_tp, given.tp, given.model
    if expert_tp is None or tp is None:
        return None
    if not model.num_experts:
        words = f"needs a model with experts; {model.name} has none"
        return Problem("expert_tp", words, expert_tp)
    if tp % expert_tp == 0:
        return None
    return Problem("expert_tp", f"does not divide tp {tp}", expert_tp, listed(divisors(tp)))


@rule(ModelContext)
def shard_ranks_divide_the_copies(given: ModelContext) -> Problem | None:
    """Shard states over equal groups of copies, where they are sharded at all."""
    dp, cp, zero, shard_ranks = given.dp, given.cp, given.zero, given.shard_ranks
    if dp is None or cp is None or zero is None or shard_ranks is None:
        return None
    if zero == 0:
        return Problem(
            "shard_ranks", "needs a ZeRO stage that shards states; zero is 0", shard_ranks
        )
    if dp * cp % shard_ranks == 0:
        return None
    words = f"does not divide dp {dp} x cp {cp} = {dp * cp} ranks"
    return Problem("shard_ranks", words, shard_ranks, listed(divisors(dp * cp)))


@rule(TaskContext)
def only_models_are_cut(given: TaskContext) -> Problem | None:
    """Share out what has no model, such as a reward function, by samples alone."""
    task, sizes = given.task, given.sizes
    for name, size in sizes.items():
        if not task.has_model and name != "dp" and size > 1:
            return Problem(name, f"cuts a model, and {task.name} has none", size, "1")
    return None


@rule(TaskContext)
def sizes_cover_the_pool(given: TaskContext) -> Problem | None:
    """Use every GPU of the pool: while a task has it, nothing else does."""
    sizes, pool = given.sizes, given.pool
    if pool is None:
        return None
    covered = prod(sizes.values())
    if pool.gpus is None or (
        covered == pool.gpus if len(sizes) == len(SIZES) else pool.gpus % covered == 0
    ):
        return None
    words = " x ".join(f"{name} {size}" for name, size in sizes.items())
    if len(sizes) == len(SIZES):
        problem = f"{words} covers {covered} GPUs, but pool {pool.name} has {pool.gpus}"
    else:
        problem = f"{words} = {covered} does not divide the {pool.gpus} GPUs of pool {pool.name}"
    return Problem("", problem)


@rule(ModelContext)
def sizes_fit_the_cluster(given: ModelContext) -> Problem | None:
    """Take GPUs that are at hand."""
    sizes, cluster_gpus = given.sizes, given.cluster_gpus
    if cluster_gpus is None or prod(sizes.values()) <= cluster_gpus:
        return None
    words = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return Problem("", f"{words} covers more than the cluster's {cluster_gpus} GPUs")


@rule(ModelContext)
def some_replicas_write(given: ModelContext) -> Problem | None:
    """Leave replicas that write where others only read prompts."""
    apart, dp = given.job.prefill, given.layout.dp
    if apart is None or dp is None or not given.task.generates or dp > apart.replicas:
        return None
    words = f"leaves no replica to write: {apart.replicas} read prompts alone (prefill.replicas)"
    return Problem("dp", words, dp, f"more than {apart.replicas}, or fewer prefill.replicas")


@rule(ModelContext)
def chunks_want_a_training_pipeline(given: ModelContext) -> Problem | None:
    """Interleave the stages of a pipeline that runs forwards and backwards."""
    task, chunks, pp = given.task, given.chunks, given.pp
    if chunks is None or pp is None or chunks == 1 or (task.trains and pp > 1):
        return None
    return Problem("chunks", "needs a training pipeline that interleaves", chunks, "1")


@rule(ModelContext)
def chunks_divide_the_stage(given: ModelContext) -> Problem | None:
    """Give every chunk of a stage equally many layers."""
    chunks, layout, pp, model = given.chunks, given.layout, given.pp, given.model
    if chunks is None or pp is None or chunks == 1:
        return None
    first, last = layout.first_stage_layers or 0, layout.last_stage_layers or 0
    layers = sorted(set(layers_of_stages(model.num_layers, pp, first, last)))
    if all(each and each % chunks == 0 for each in layers):
        return None
    words = f"does not divide the {listed(layers)} layers of a stage"
    return Problem("chunks", words, chunks, listed(divisors(gcd(*layers)) or (1,)))


@rule(ModelContext)
def inference_reads_the_weights_of_training(given: ModelContext) -> Problem | None:
    """Infer where and as a role is trained: its weights live there, and nothing brings them elsewhere."""
    layout, training = given.layout, given.training
    if training is None:
        return None
    whole = isinstance(layout, TaskPlan) and isinstance(training, TaskPlan)
    for name in ("pool", *SIZES, "ep", *OPEN):
        own, trained = getattr(layout, name), getattr(training, name)
        if name == "expert_tp":
            own, trained = own or layout.tp, trained or training.tp
        open_too = own is None or trained is None
        if own != trained and not (open_too and not (whole and name in OPEN)):
            words = (
                f"differs from {given.training_name}'s, where the weights of {given.task.role} live"
            )
            return Problem(name, words, own, str(trained or "none"))
    return None


@rule(ModelContext)
def inference_is_sharded_as_training(given: ModelContext) -> Problem | None:
    """Shard what infers fully where its training does, and only there: both read the same weights."""
    layout, training = given.layout, given.training
    if training is None:
        return None
    own, trained = layout.zero, training.zero
    if own is None or trained is None:
        return None
    if own == trained == FULLY_SHARDED and layout.shard_ranks != training.shard_ranks:
        words = (
            f"differs from {given.training_name}'s, in which the weights of {given.task.role} lie"
        )
        return Problem("shard_ranks", words, layout.shard_ranks, str(training.shard_ranks))
    if (own == FULLY_SHARDED) == (trained == FULLY_SHARDED):
        return None
    words = f"differs from {given.training_name}'s stage {trained}, in which the weights of {given.task.role} lie"
    return Problem("zero", words, own, str(FULLY_SHARDED if trained == FULLY_SHARDED else 0))
