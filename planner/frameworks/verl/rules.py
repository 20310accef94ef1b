"""What verl asks for at run time, and its validator for the most part does not see.

Sources are files of verl 0.9.1: `workers/` and `trainer/ppo/` as the rules name them. Rules that earlier versions did
not have say since when there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from rlplan.job import Role
from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.frameworks.verl import teaching
from rlplan.planner.frameworks.verl.reading import (
    CUTS_EXPERTS,
    FULLY_ASYNC,
    is_fully_async,
    starts_empty,
)
from rlplan.planner.frameworks.verl.trainers import of_role, roles_of, trainer_of

MEGATRON: Final = ("megatron", "mlite")
FSDP: Final = "fsdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(RoleSettings):
    """Hold the sizes of one role: GPUs, and how they are shared out."""

    gpus: int
    tp: int
    pp: int
    cp: int
    dp: int


def world_of(settings: Settings) -> int:
    """Return the GPUs of the trainer's nodes."""
    return settings.whole("nodes") * settings.whole("gpus_per_node")


def sizes_of(settings: Settings, role: Role) -> Sizes:
    """Return the sizes of one role."""
    trainer, gpus = trainer_of(settings), world_of(settings)
    own = of_role(settings, trainer, role)
    tp, pp, cp = (own.whole(name) for name in ("tp", "pp", "cp"))
    dp = gpus // (tp * pp * cp) if divides(tp * pp * cp, gpus) else 0
    return Sizes(settings, trainer, role, own.layout_of, gpus=gpus, tp=tp, pp=pp, cp=cp, dp=dp)


def sizes_of_roles(settings: Settings) -> Iterator[Sizes]:
    """Yield the sizes of each role that the trainer holds."""
    for role in roles_of(settings):
        yield sizes_of(settings, role)


def longest_of(settings: Settings) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return settings.whole("max_prompt") + settings.whole("max_response")


def is_async(settings: Settings) -> bool:
    """Tell whether verl's own fully asynchronous training is started."""
    return FULLY_ASYNC in settings.start


def is_separate(settings: Settings) -> bool:
    """Tell whether V1 generates on nodes of its own."""
    return settings.value("trainer_mode") == "separate_async" and not is_async(settings)


def rollout_gpus(settings: Settings) -> int:
    """Return the GPUs that generate."""
    nodes = settings.whole("rollout_nodes")
    return nodes * settings.whole("rollout_gpus_per_node") if nodes > 0 else world_of(settings)


def replica_gpus(settings: Settings) -> int:
    """Return the GPUs of one replica of the engine."""
    return prod(settings.whole(f"rollout_{size}") for size in ("tp", "dp", "pp"))


def is_tensorrt(settings: Settings) -> bool:
    """Tell whether TensorRT-LLM generates."""
    return settings.word("rollout_engine").startswith(CUTS_EXPERTS)


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
    """Shard over equal groups of GPUs; FSDP's of more than there are is all of them (create_device_mesh)."""
    for each in sizes_of_roles(settings):
        if each.trainer in MEGATRON:
            continue
        size = each.optional_whole("shard_ranks")
        is_all = size is None or size < 0 or (each.trainer == FSDP and size >= each.gpus)
        holds = is_all or (size is not None and divides(size, each.gpus))
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


def mini_batches_divide(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    if is_fully_async(settings):
        return  # its trainer takes samples from a queue
    mini = settings.whole("mini_prompts") * settings.whole("copies")
    for each in sizes_of_roles(settings):
        if each.role != "reference" and each.dp:
            problem = f"x rollout.n = {mini} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
            holds = divides(each.dp, mini)
            yield from unless(holds, "mini_prompts", problem, f"a multiple of {each.dp}")


def micro_batches_divide(settings: Settings) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches."""
    mini = settings.whole("mini_prompts") * settings.whole("copies")
    for each in sizes_of_roles(settings):
        size = each.optional_whole("micro_batch")
        if (
            each.on("dynamic")
            or each.role == "reference"
            or not size
            or not each.dp
            or mini % each.dp
        ):
            continue
        samples = mini // each.dp
        problem = f"does not divide the {samples} samples of an update on a rank"
        holds = divides(size, samples) or size >= samples
        yield from unless(holds, each.key_of("micro_batch"), problem, f"divisors of {samples}")


def micro_batches_are_given(settings: Settings) -> Iterator[Broken]:
    """Say a micro-batch's size where tokens do not decide it."""
    for each in sizes_of_roles(settings):
        if each.on("dynamic"):
            continue
        sizes = [each.value(name) for name in ("micro_batch", "global_micro_batch")]
        problem = "is missing, and use_dynamic_bsz is off"
        yield from unless(any(sizes), each.key_of("micro_batch"), problem, "a whole number")
    if not settings.on("infer_dynamic"):
        given = settings.optional_whole("infer_micro_batch")
        given = given or settings.optional_whole("infer_global_micro_batch")
        problem = "is missing, and log_prob_use_dynamic_bsz is off"
        yield from unless(given is not None, "infer_micro_batch", problem, "a whole number")


def micro_batches_are_given_once(settings: Settings) -> Iterator[Broken]:
    """Say a micro-batch's size for a GPU, or for all of them, not both."""
    for each in sizes_of_roles(settings):
        both = each.is_given("micro_batch") and each.is_given("global_micro_batch")
        key = each.key_of("global_micro_batch")
        yield from unless(not both, key, "is given beside the size for one GPU", "one of them")


def batches_hold_a_mini_batch(settings: Settings) -> Iterator[Broken]:
    """Update from no more prompts than a batch has."""
    prompts = settings.whole("prompts") * settings.whole("agents")
    mini = settings.whole("mini_prompts")
    problem = f"is above data.train_batch_size {prompts}"
    # Fully asynchronous trainers take 0 prompts, and start without the validator.
    holds = mini <= prompts or is_fully_async(settings)
    yield from unless(holds, "mini_prompts", problem, f"at most {prompts}")


def batches_balance(settings: Settings) -> Iterator[Broken]:
    """Deal equally many samples of a batch to the data-parallel ranks."""
    prompts = settings.whole("prompts")
    samples = prompts * settings.whole("agents") * settings.whole("copies")
    if prompts < 1:
        return
    for each in sizes_of_roles(settings):
        problem = f"x rollout.n = {samples} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
        holds = not each.dp or divides(each.dp, samples)
        yield from unless(holds, "prompts", problem, f"multiples of {each.dp}")


def budgets_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Give a micro-batch room for the longest sequence."""
    longest = longest_of(settings)
    for each in sizes_of_roles(settings):
        if not each.on("dynamic"):
            continue
        holds = each.whole("token_budget", 0) * each.cp >= longest
        problem = f"x {each.cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
        allowed = f"at least {-(-longest // each.cp):,}"
        yield from unless(holds, each.key_of("token_budget"), problem, allowed)


def log_prob_budgets_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Give a micro-batch of log-probabilities room for the longest sequence."""
    longest, cp = longest_of(settings), sizes_of(settings, "actor").cp
    holds = not settings.on("infer_dynamic") or settings.whole("infer_token_budget") * cp >= longest
    problem = f"x {cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
    yield from unless(holds, "infer_token_budget", problem, f"at least {-(-longest // cp):,}")


def actor_and_log_probs_batch_alike(settings: Settings) -> Iterator[Broken]:
    """Decide micro-batches of updates and of log-probabilities in the same way."""
    actor, infers = settings.on("actor_dynamic"), settings.on("infer_dynamic")
    problem = f"is not as actor.use_dynamic_bsz, which is {actor}"
    yield from unless(actor == infers, "infer_dynamic", problem, str(actor))


def sequences_fit_the_engine(settings: Settings) -> Iterator[Broken]:
    """Let the engine take the longest prompt with the longest response."""
    longest = longest_of(settings)
    most = settings.optional_whole("max_model_len")
    problem = f"is less than the longest prompt and response, {longest:,} tokens"
    holds = most is None or most >= longest
    yield from unless(holds, "max_model_len", problem, f"at least {longest:,}")


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is None:
        return
    positions = settings.positions() or model.max_positions
    most = settings.optional_whole("max_model_len") or 0
    longest = max(longest_of(settings), most)
    key = "max_model_len" if most >= longest else "max_response"
    problem = f"makes sequences of {longest:,} tokens, and {model.name} has {positions:,} positions"
    yield from unless(longest <= positions, key, problem, f"at most {positions:,} together")


def interleaved_stages_take_whole_rounds(settings: Settings) -> Iterator[Broken]:
    """Fill interleaved pipelines with micro-batches by rounds of all stages."""
    for each in sizes_of_roles(settings):
        chunks, size = each.whole("chunks"), each.optional_whole("micro_batch")
        mini = settings.whole("mini_prompts") * settings.whole("copies")
        if chunks > 1 and each.pp < 2:  # noqa: PLR2004 -- stages of a pipeline
            problem = "interleaves a pipeline of one stage"
            yield from unless(False, each.key_of("chunks"), problem, "null")
        elif chunks > 1 and size and each.dp and not each.on("dynamic"):
            count = mini // each.dp // size
            problem = f"needs micro-batches in rounds of {each.pp}, and a rank has {count}"
            yield from unless(divides(each.pp, count), each.key_of("chunks"), problem, "null")


LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
AGGREGATIONS: Final = (
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
)  # fmt: skip
ROLLOUT: Final = "actor_rollout_ref.rollout"


def separate_batches_are_sync_steps(settings: Settings) -> Iterator[Broken]:
    """Learn from a batch in as many updates as lie between two syncs."""
    if is_separate(settings):
        wanted = settings.whole("sync_step") * settings.whole("mini_prompts")
        problem = f"is not parameter_sync_step x ppo_mini_batch_size = {wanted}"
        holds = settings.whole("prompts") == wanted
        yield from unless(holds, "prompts", problem, str(wanted))


def separate_rollout_has_nodes(settings: Settings) -> Iterator[Broken]:
    """Give separate generation GPUs of its own."""
    if is_separate(settings) or is_async(settings):
        for name in ("rollout_nodes", "rollout_gpus_per_node"):
            holds = settings.whole(name) > 0
            yield from unless(holds, name, "leaves generation no GPU", "at least 1")


def separate_weights_need_a_transport(settings: Settings) -> Iterator[Broken]:
    """Bring weights to other GPUs by a back end that reaches them."""
    holds = not is_separate(settings) or settings.word("sync_backend") != "naive"
    problem = "reaches no other GPUs, and generation has its own"
    yield from unless(holds, "sync_backend", problem, "nccl, nixl, mooncake, kimi_ckpt_engine")


def async_reward_models_have_a_pool(settings: Settings) -> Iterator[Broken]:
    """Keep a reward model on GPUs of its own where generation does not stop."""
    runs_on = is_separate(settings) or is_async(settings)
    holds = not runs_on or not settings.on("reward_on") or settings.on("reward_pool")
    yield from unless(holds, "reward_pool", "is off in an asynchronous mode", "True")


def reward_pools_have_gpus(settings: Settings) -> Iterator[Broken]:
    """Give a reward model's pool GPUs for at least one whole replica."""
    if not (settings.on("reward_on") and settings.on("reward_pool")):
        return
    for name in ("reward_nodes", "reward_gpus_per_node"):
        holds = settings.whole(name) > 0
        yield from unless(holds, name, "leaves the reward model no GPU", "at least 1")
    gpus = settings.whole("reward_nodes") * settings.whole("reward_gpus_per_node")
    holds = divides(settings.whole("reward_tp"), gpus)
    problem = f"does not divide the reward model's {gpus} GPUs"
    yield from unless(holds, "reward_tp", problem, f"divisors of {gpus}")


def reward_models_have_a_path(settings: Settings) -> Iterator[Broken]:
    """Name the reward model that is switched on."""
    holds = not settings.on("reward_on") or settings.is_given("reward_model")
    yield from unless(holds, "reward_model", "is missing", "a model's path")


def async_keeps_no_hybrid_engine(settings: Settings) -> Iterator[Broken]:
    """Run fully asynchronous training without the hybrid engine."""
    holds = not is_async(settings) or settings.value("hybrid") is False
    yield from unless(holds, "hybrid", "is on in fully asynchronous training", "False")


def async_takes_prompts_one_by_one(settings: Settings) -> Iterator[Broken]:
    """Leave batches to the queue in fully asynchronous training."""
    if is_async(settings):
        for name, wanted in (("prompts", 0), ("gen_prompts", 1)):
            holds = settings.optional_whole(name) == wanted or not settings.is_given(name)
            problem = f"is not {wanted} in fully asynchronous training"
            yield from unless(holds, name, problem, str(wanted))


def async_counts_are_sound(settings: Settings) -> Iterator[Broken]:
    """Bound how old samples may be, and sync at all."""
    if is_async(settings):
        holds = settings.number("staleness") >= 0
        yield from unless(holds, "staleness", "is negative", "0 or more")
        yield from unless(settings.whole("trigger") >= 1, "trigger", "is below 1", "1 or more")


def async_keeps_log_probs(settings: Settings) -> Iterator[Broken]:
    """Keep the log-probabilities of the policy that generated."""
    holds = not is_async(settings) or settings.on("calculates_log_probs")
    problem = "is off in fully asynchronous training"
    yield from unless(holds, "calculates_log_probs", problem, "True")


def adapters_have_a_rank_of_the_engine(settings: Settings) -> Iterator[Broken]:
    """Train adapters of a rank that vLLM serves."""
    holds = settings.whole("lora_rank") <= LORA_RANKS[-1]
    problem, allowed = "is a rank that vLLM does not serve", ", ".join(map(str, LORA_RANKS))
    yield from unless(holds, "lora_rank", problem, f"up to {allowed}")


def layers_are_summoned_beside_weights(settings: Settings) -> Iterator[Broken]:
    """Collect adapters layer by layer only where the engine has read the model."""
    summons = settings.given(settings.key_of("summons_layers")) in {True, "True", "true"}
    adapts = settings.whole("lora_rank") > 0 and not settings.on("lora_merges")
    holds = not (summons and adapts and starts_empty(settings))
    problem = "lets the engine start without weights, which layered_summon does not send"
    holds = holds or trainer_of(settings) != "fsdp"
    yield from unless(holds, "load_format", problem, "safetensors")


def losses_are_aggregated(settings: Settings) -> Iterator[Broken]:
    """Weigh a policy's loss in a way that there is."""
    key = "actor_rollout_ref.actor.loss_agg_mode"
    holds = key not in settings.flat or settings.given(key) in AGGREGATIONS
    yield from unless(holds, key, "is not known", ", ".join(AGGREGATIONS))


def generation_is_asynchronous(settings: Settings) -> Iterator[Broken]:
    """Generate through servers: the synchronous mode is gone."""
    key = f"{ROLLOUT}.mode"
    yield from unless(settings.given(key) != "sync", key, "is gone", "async")


def validation_samples_with_a_temperature(settings: Settings) -> Iterator[Broken]:
    """Sample validation responses at a temperature above 0."""
    key = f"{ROLLOUT}.val_kwargs.temperature"
    samples = settings.given(f"{ROLLOUT}.val_kwargs.do_sample")
    holds = not samples or bool(settings.given(key))
    yield from unless(holds, key, "is 0, and validation samples", "above 0")


def dynamic_context_needs_a_length(settings: Settings) -> Iterator[Broken]:
    """Say the longest sequence of a rank where context parallelism follows lengths."""
    on = settings.given("actor_rollout_ref.actor.megatron.dynamic_context_parallel")
    key = "actor_rollout_ref.actor.megatron.max_seqlen_per_dp_cp_rank"
    holds = not on or bool(settings.given(key))
    yield from unless(holds, key, "is missing beside dynamic_context_parallel", "tokens, above 0")


def disaggregation_has_an_engine(settings: Settings) -> Iterator[Broken]:
    """Split prefill and decode only with vLLM or SGLang."""
    holds = not settings.given(f"{ROLLOUT}.disaggregation.enabled") or not is_tensorrt(settings)
    yield from unless(holds, "rollout_engine", "does not split prefill and decode", "vllm, sglang")


RULES: Final = (
    Rule(replicas_divide_the_gpus, "workers/engine_workers.py:659"),
    Rule(replicas_fill_nodes, "workers/rollout/replica.py:114"),
    Rule(tensor_ranks_stay_in_a_node, "workers/rollout/vllm_rollout/vllm_async_server.py:385"),
    Rule(expert_ranks_are_all_of_a_replica, "workers/config/rollout.py"),
    Rule(only_tensorrt_pipelines, "workers/config/rollout.py"),
    Rule(model_ranks_divide_the_gpus, "utils/config.py: validate_config; Megatron-Core"),
    Rule(expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    Rule(mini_batches_divide, "workers/engine_workers.py:267"),
    Rule(micro_batches_divide, "workers/engine/utils.py:125"),
    Rule(micro_batches_are_given, "utils/config.py: validate_config"),
    Rule(micro_batches_are_given_once, "utils/config.py: validate_config"),
    Rule(batches_hold_a_mini_batch, "utils/config.py: validate_config"),
    Rule(batches_balance, "utils/seqlen_balancing.py:147"),
    Rule(budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    Rule(log_prob_budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    Rule(actor_and_log_probs_batch_alike, "workers/engine_workers.py:616", since="0.8"),
    Rule(sequences_fit_the_engine, "vLLM, at the start of the engine"),
    Rule(sequences_fit_the_model, "vLLM, at the start of the engine"),
    Rule(sequence_ranks_divide_the_heads, "models/transformers/monkey_patch.py:344"),
    Rule(sequence_ranks_want_packing, "utils/config.py: validate_config"),
    Rule(shards_divide_the_gpus, "PyTorch, init_device_mesh"),
    Rule(
        models_come_by_the_bridge,
        "workers/engine/megatron/transformer_impl.py:191",
        since="0.8",
    ),
    Rule(
        interleaved_stages_take_whole_rounds,
        "workers/engine/megatron/transformer_impl.py:916",
    ),
    Rule(separate_batches_are_sync_steps, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(separate_rollout_has_nodes, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(separate_weights_need_a_transport, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(async_reward_models_have_a_pool, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(reward_pools_have_gpus, "trainer/ppo/v1/trainer_base.py:825"),
    Rule(reward_models_have_a_path, "trainer/config/reward"),
    Rule(
        async_keeps_no_hybrid_engine,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    Rule(
        async_takes_prompts_one_by_one,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    Rule(async_counts_are_sound, "experimental/fully_async_policy/fully_async_rollouter.py:350"),
    Rule(async_keeps_log_probs, "experimental/fully_async_policy/fully_async_rollouter.py:350"),
    Rule(adapters_have_a_rank_of_the_engine, "utils/config.py: validate_config"),
    Rule(layers_are_summoned_beside_weights, "utils/fsdp_utils.py: collect_lora_params"),
    Rule(losses_are_aggregated, "workers/config/actor.py"),
    Rule(generation_is_asynchronous, "workers/config/rollout.py", since="0.7"),
    Rule(validation_samples_with_a_temperature, "utils/config.py: validate_config"),
    Rule(dynamic_context_needs_a_length, "utils/config.py: validate_config"),
    Rule(disaggregation_has_an_engine, "workers/config/rollout.py"),
    *teaching.RULES,
)
