"""What verl asks for at run time, and its validator for the most part does not see.

Sources are files of verl 0.9.1: `workers/` and `trainer/ppo/` as the rules name them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.configs.broken import Broken, Check, Rule, Subject, divides, unless
from planner.configs.frameworks.verl import FULLY_ASYNC, trainer_of
from planner.configs.settings import Settings
from rlplan.job import Role

MEGATRON: Final = ("megatron", "mlite")
LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
AGGREGATIONS: Final = (
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
)  # fmt: skip
ROLLOUT: Final = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Hold the sizes of one role: GPUs, and how they are shared out."""

    trainer: str
    role: Role
    gpus: int
    tp: int
    pp: int
    cp: int
    dp: int

    def key(self, settings: Settings, name: str) -> str:
        """Return the key of one of its sizes."""
        return settings.key_of_size(self.trainer, self.role, name)


def _world(settings: Settings) -> int:
    return settings.whole("nodes") * settings.whole("gpus_per_node")


def _roles(settings: Settings) -> Iterator[Role]:
    yield "actor"
    if settings.on("kl_loss") or settings.on("kl_reward"):
        yield "reference"
    if settings.word("estimator") == "ppo":
        yield "critic"


def _sizes(settings: Settings, role: Role) -> Sizes:
    trainer, gpus = trainer_of(settings), _world(settings)
    tp, pp, cp = (settings.whole_size(trainer, role, name, 1) or 1 for name in ("tp", "pp", "cp"))
    dp = gpus // (tp * pp * cp) if divides(tp * pp * cp, gpus) else 0
    return Sizes(trainer=trainer, role=role, gpus=gpus, tp=tp, pp=pp, cp=cp, dp=dp)


def _of_roles(subject: Subject) -> Iterator[Sizes]:
    for role in _roles(subject.settings):
        yield _sizes(subject.settings, role)


def _longest(settings: Settings) -> int:
    return settings.whole("max_prompt") + settings.whole("max_response")


def _is_async(subject: Subject) -> bool:
    return FULLY_ASYNC in subject.start


def _is_separate(subject: Subject) -> bool:
    return subject.settings.value("trainer_mode") == "separate_async" and not _is_async(subject)


def _rollout_gpus(subject: Subject) -> int:
    settings = subject.settings
    nodes = settings.whole("rollout_nodes")
    return nodes * settings.whole("rollout_gpus_per_node") if nodes > 0 else _world(settings)


def _replica(settings: Settings) -> int:
    return (
        settings.whole("rollout_tp") * settings.whole("rollout_dp") * settings.whole("rollout_pp")
    )


def replicas_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the rollout's GPUs out to whole replicas of the engine."""
    settings, gpus = subject.settings, _rollout_gpus(subject)
    size = _replica(settings)
    problem = f"replicas of TP x DP x PP = {size} GPUs do not divide the rollout's {gpus}"
    yield from unless(
        divides(size, gpus), settings.key_of("rollout_tp"), problem, f"divisors of {gpus}"
    )


def replicas_fill_nodes(subject: Subject) -> Iterator[Broken]:
    """Put equally many GPUs of a replica on each of its nodes."""
    settings = subject.settings
    size, per_node = _replica(settings), settings.whole("gpus_per_node")
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
    for each in _of_roles(subject):
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
    for each in _of_roles(subject):
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


def mini_batches_divide(subject: Subject) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    settings = subject.settings
    mini = settings.whole("mini_prompts") * settings.whole("samples")
    for each in _of_roles(subject):
        if each.role != "reference" and each.dp:
            problem = f"x rollout.n = {mini} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
            yield from unless(
                divides(each.dp, mini),
                settings.key_of("mini_prompts"),
                problem,
                f"a multiple of {each.dp}",
            )


def micro_batches_divide(subject: Subject) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches."""
    settings = subject.settings
    mini = settings.whole("mini_prompts") * settings.whole("samples")
    for each in _of_roles(subject):
        size = settings.whole_size(each.trainer, each.role, "micro_batch")
        dynamic = settings.size_is_on(each.trainer, each.role, "dynamic")
        if dynamic or each.role == "reference" or not size or not each.dp or mini % each.dp:
            continue
        samples = mini // each.dp
        problem = f"does not divide the {samples} samples of an update on a rank"
        holds = divides(size, samples) or size >= samples
        key = each.key(settings, "micro_batch")
        yield from unless(holds, key, problem, f"divisors of {samples}")


def micro_batches_are_given(subject: Subject) -> Iterator[Broken]:
    """Say a micro-batch's size where tokens do not decide it."""
    settings = subject.settings
    for each in _of_roles(subject):
        if settings.size_is_on(each.trainer, each.role, "dynamic"):
            continue
        sizes = [
            settings.size(each.trainer, each.role, name)
            for name in ("micro_batch", "global_micro_batch")
        ]
        problem = "is missing, and use_dynamic_bsz is off"
        yield from unless(any(sizes), each.key(settings, "micro_batch"), problem, "a whole number")
    if not settings.on("infer_dynamic"):
        given = settings.optional_whole("infer_micro_batch")
        problem = "is missing, and log_prob_use_dynamic_bsz is off"
        key = settings.key_of("infer_micro_batch")
        yield from unless(given is not None, key, problem, "a whole number")


def micro_batches_are_given_once(subject: Subject) -> Iterator[Broken]:
    """Say a micro-batch's size for a GPU, or for all of them, not both."""
    settings = subject.settings
    for each in _of_roles(subject):
        own, of_all = (
            settings.size(each.trainer, each.role, name)
            for name in ("micro_batch", "global_micro_batch")
        )
        key = each.key(settings, "global_micro_batch")
        problem = "is given beside the size for one GPU"
        yield from unless(not (own and of_all), key, problem, "one of them")


def batches_hold_a_mini_batch(subject: Subject) -> Iterator[Broken]:
    """Update from no more prompts than a batch has."""
    settings = subject.settings
    prompts, mini = settings.whole("prompts"), settings.whole("mini_prompts")
    problem = f"is above data.train_batch_size {prompts}"
    holds = mini <= prompts or _is_async(subject)
    yield from unless(holds, settings.key_of("mini_prompts"), problem, f"at most {prompts}")


def batches_balance(subject: Subject) -> Iterator[Broken]:
    """Deal equally many samples of a batch to the data-parallel ranks."""
    settings = subject.settings
    prompts = settings.whole("prompts")
    samples = prompts * settings.whole("samples")
    if prompts < 1:
        return
    for each in _of_roles(subject):
        problem = f"x rollout.n = {samples} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
        holds = not each.dp or divides(each.dp, samples)
        yield from unless(holds, settings.key_of("prompts"), problem, f"multiples of {each.dp}")


def budgets_hold_the_longest(subject: Subject) -> Iterator[Broken]:
    """Give a micro-batch room for the longest sequence."""
    settings, longest = subject.settings, _longest(subject.settings)
    for each in _of_roles(subject):
        if not settings.size_is_on(each.trainer, each.role, "dynamic"):
            continue
        budget = settings.whole_size(each.trainer, each.role, "token_budget", 0) or 0
        problem = f"x {each.cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
        needed = -(-longest // each.cp)
        yield from unless(
            budget * each.cp >= longest,
            each.key(settings, "token_budget"),
            problem,
            f"at least {needed:,}",
        )


def log_prob_budgets_hold_the_longest(subject: Subject) -> Iterator[Broken]:
    """Give a micro-batch of log-probabilities room for the longest sequence."""
    settings, longest = subject.settings, _longest(subject.settings)
    cp = _sizes(settings, "actor").cp
    holds = not settings.on("infer_dynamic") or settings.whole("infer_token_budget") * cp >= longest
    problem = f"x {cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
    yield from unless(
        holds, settings.key_of("infer_token_budget"), problem, f"at least {-(-longest // cp):,}"
    )


def actor_and_log_probs_batch_alike(subject: Subject) -> Iterator[Broken]:
    """Decide micro-batches of updates and of log-probabilities in the same way."""
    settings = subject.settings
    actor, infers = settings.on("actor_dynamic"), settings.on("infer_dynamic")
    key = settings.key_of("infer_dynamic")
    problem = f"is not as actor.use_dynamic_bsz, which is {actor}"
    yield from unless(actor == infers, key, problem, str(actor))


def sequences_fit_the_engine(subject: Subject) -> Iterator[Broken]:
    """Let the engine take the longest prompt with the longest response."""
    settings, longest = subject.settings, _longest(subject.settings)
    most = settings.optional_whole("max_model_len")
    problem = f"is less than the longest prompt and response, {longest:,} tokens"
    holds = most is None or most >= longest
    yield from unless(holds, settings.key_of("max_model_len"), problem, f"at least {longest:,}")


def sequences_fit_the_model(subject: Subject) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    settings, model = subject.settings, subject.actor
    if model is None:
        return
    positions = settings.optional_whole("positions") or model.max_positions
    most = settings.optional_whole("max_model_len") or 0
    longest = max(_longest(settings), most)
    key = settings.key_of("max_model_len" if most >= longest else "max_response")
    problem = f"makes sequences of {longest:,} tokens, and {model.name} has {positions:,} positions"
    yield from unless(longest <= positions, key, problem, f"at most {positions:,} together")


def sequence_ranks_divide_the_heads(subject: Subject) -> Iterator[Broken]:
    """Give every rank of Ulysses' exchange equally many heads."""
    settings, model = subject.settings, subject.actor
    each = _sizes(settings, "actor")
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
    each = _sizes(settings, "actor")
    holds = each.cp == 1 or each.trainer in MEGATRON or settings.on("packs")
    yield from unless(
        holds, settings.key_of("packs"), "is off, and sequences are cut over ranks", "True"
    )


def shards_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Shard over equal groups of GPUs."""
    settings = subject.settings
    for each in _of_roles(subject):
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
    for each in _of_roles(subject):
        if each.trainer == "megatron":
            holds = settings.size(each.trainer, each.role, "bridge") is not False
            yield from unless(
                holds, each.key(settings, "bridge"), "is off, and no other loader is left", "True"
            )


def interleaved_stages_take_whole_rounds(subject: Subject) -> Iterator[Broken]:
    """Fill interleaved pipelines with micro-batches by rounds of all stages."""
    settings = subject.settings
    for each in _of_roles(subject):
        chunks = settings.whole_size(each.trainer, each.role, "chunks") or 1
        size = settings.whole_size(each.trainer, each.role, "micro_batch")
        mini = settings.whole("mini_prompts") * settings.whole("samples")
        dynamic = settings.size_is_on(each.trainer, each.role, "dynamic")
        if chunks > 1 and each.pp < 2:  # noqa: PLR2004 -- stages of a pipeline
            yield Broken(
                key=each.key(settings, "chunks"),
                problem="interleaves a pipeline of one stage",
                allowed="null",
            )
        elif chunks > 1 and size and each.dp and not dynamic:
            count = mini // each.dp // size
            problem = f"needs micro-batches in rounds of {each.pp}, and a rank has {count}"
            yield from unless(
                divides(each.pp, count), each.key(settings, "chunks"), problem, "null"
            )


def separate_batches_are_sync_steps(subject: Subject) -> Iterator[Broken]:
    """Learn from a batch in as many updates as lie between two syncs."""
    settings = subject.settings
    if _is_separate(subject):
        wanted = settings.whole("sync_step") * settings.whole("mini_prompts")
        problem = f"is not parameter_sync_step x ppo_mini_batch_size = {wanted}"
        yield from unless(
            settings.whole("prompts") == wanted, settings.key_of("prompts"), problem, str(wanted)
        )


def separate_rollout_has_nodes(subject: Subject) -> Iterator[Broken]:
    """Give separate generation GPUs of its own."""
    settings = subject.settings
    if _is_separate(subject) or _is_async(subject):
        for name in ("rollout_nodes", "rollout_gpus_per_node"):
            key = settings.key_of(name)
            yield from unless(
                settings.whole(name) > 0, key, "leaves generation no GPU", "at least 1"
            )


def separate_weights_need_a_transport(subject: Subject) -> Iterator[Broken]:
    """Bring weights to other GPUs by a back end that reaches them."""
    settings = subject.settings
    holds = not _is_separate(subject) or settings.word("sync_backend") != "naive"
    problem = "reaches no other GPUs, and generation has its own"
    yield from unless(
        holds, settings.key_of("sync_backend"), problem, "nccl, nixl, mooncake, kimi_ckpt_engine"
    )


def async_reward_models_have_a_pool(subject: Subject) -> Iterator[Broken]:
    """Keep a reward model on GPUs of its own where generation does not stop."""
    settings = subject.settings
    runs_on = _is_separate(subject) or _is_async(subject)
    holds = not runs_on or not settings.on("reward_on") or settings.on("reward_pool")
    yield from unless(
        holds, settings.key_of("reward_pool"), "is off in an asynchronous mode", "True"
    )


def reward_pools_have_gpus(subject: Subject) -> Iterator[Broken]:
    """Give a reward model's pool GPUs for at least one whole replica."""
    settings = subject.settings
    if not (settings.on("reward_on") and settings.on("reward_pool")):
        return
    for name in ("reward_nodes", "reward_gpus_per_node"):
        key = settings.key_of(name)
        yield from unless(
            settings.whole(name) > 0, key, "leaves the reward model no GPU", "at least 1"
        )
    gpus = settings.whole("reward_nodes") * settings.whole("reward_gpus_per_node")
    tp = settings.whole("reward_tp")
    problem = f"does not divide the reward model's {gpus} GPUs"
    yield from unless(
        divides(tp, gpus), settings.key_of("reward_tp"), problem, f"divisors of {gpus}"
    )


def reward_models_have_a_path(subject: Subject) -> Iterator[Broken]:
    """Name the reward model that is switched on."""
    settings = subject.settings
    holds = not settings.on("reward_on") or settings.is_given("reward_model")
    yield from unless(holds, settings.key_of("reward_model"), "is missing", "a model's path")


def async_keeps_no_hybrid_engine(subject: Subject) -> Iterator[Broken]:
    """Run fully asynchronous training without the hybrid engine."""
    settings = subject.settings
    holds = not _is_async(subject) or settings.value("hybrid") is False
    yield from unless(
        holds, settings.key_of("hybrid"), "is on in fully asynchronous training", "False"
    )


def async_takes_prompts_one_by_one(subject: Subject) -> Iterator[Broken]:
    """Leave batches to the queue in fully asynchronous training."""
    settings = subject.settings
    if _is_async(subject):
        for name, wanted in (("prompts", 0), ("gen_prompts", 1)):
            key = settings.key_of(name)
            holds = settings.optional_whole(name) == wanted
            yield from unless(
                holds, key, f"is not {wanted} in fully asynchronous training", str(wanted)
            )


def async_counts_are_sound(subject: Subject) -> Iterator[Broken]:
    """Bound how old samples may be, and sync at all."""
    settings = subject.settings
    if _is_async(subject):
        yield from unless(
            settings.number("staleness") >= 0,
            settings.key_of("staleness"),
            "is negative",
            "0 or more",
        )
        yield from unless(
            settings.whole("trigger") >= 1, settings.key_of("trigger"), "is below 1", "1 or more"
        )


def async_keeps_log_probs(subject: Subject) -> Iterator[Broken]:
    """Keep the log-probabilities of the policy that generated."""
    settings = subject.settings
    holds = not _is_async(subject) or settings.on("calculates_log_probs")
    yield from unless(
        holds,
        settings.key_of("calculates_log_probs"),
        "is off in fully asynchronous training",
        "True",
    )


def adapters_have_a_rank_of_the_engine(subject: Subject) -> Iterator[Broken]:
    """Train adapters of a rank that vLLM serves."""
    settings = subject.settings
    rank = settings.whole("lora_rank")
    allowed = ", ".join(map(str, LORA_RANKS))
    holds = rank <= LORA_RANKS[-1]
    yield from unless(
        holds,
        settings.key_of("lora_rank"),
        "is a rank that vLLM does not serve",
        f"up to {allowed}",
    )


def losses_are_aggregated(subject: Subject) -> Iterator[Broken]:
    """Weigh a policy's loss in a way that there is."""
    key = "actor_rollout_ref.actor.loss_agg_mode"
    given = subject.settings.flat.get(key)
    holds = given is None or given.value in AGGREGATIONS
    yield from unless(holds, key, "is not known", ", ".join(AGGREGATIONS))


def generation_is_asynchronous(subject: Subject) -> Iterator[Broken]:
    """Generate through servers: the synchronous mode is gone."""
    key = f"{ROLLOUT}.mode"
    given = subject.settings.flat.get(key)
    yield from unless(given is None or given.value != "sync", key, "is gone", "async")


def validation_samples_with_a_temperature(subject: Subject) -> Iterator[Broken]:
    """Sample validation responses at a temperature above 0."""
    flat = subject.settings.flat
    samples = flat.get(f"{ROLLOUT}.val_kwargs.do_sample")
    temperature = flat.get(f"{ROLLOUT}.val_kwargs.temperature")
    holds = (
        samples is None
        or not samples.value
        or (temperature is not None and bool(temperature.value))
    )
    key = f"{ROLLOUT}.val_kwargs.temperature"
    yield from unless(holds, key, "is 0, and validation samples", "above 0")


def dynamic_context_needs_a_length(subject: Subject) -> Iterator[Broken]:
    """Say the longest sequence of a rank where context parallelism follows lengths."""
    flat = subject.settings.flat
    on = flat.get("actor_rollout_ref.actor.megatron.dynamic_context_parallel")
    key = "actor_rollout_ref.actor.megatron.max_seqlen_per_dp_cp_rank"
    most = flat.get(key)
    holds = on is None or not on.value or (most is not None and bool(most.value))
    yield from unless(holds, key, "is missing beside dynamic_context_parallel", "tokens, above 0")


def disaggregation_has_an_engine(subject: Subject) -> Iterator[Broken]:
    """Split prefill and decode only with vLLM or SGLang."""
    settings = subject.settings
    on = settings.flat.get(f"{ROLLOUT}.disaggregation.enabled")
    holds = on is None or not on.value or not settings.word("rollout_engine").startswith("tensorrt")
    yield from unless(
        holds,
        settings.key_of("rollout_engine"),
        "does not split prefill and decode",
        "vllm, sglang",
    )


def _rule(check: Check, source: str) -> Rule:
    return Rule(name=check.__name__.replace("_", "-"), source=source, check=check)


RULES: Final = (
    _rule(replicas_divide_the_gpus, "workers/engine_workers.py:659"),
    _rule(replicas_fill_nodes, "workers/rollout/replica.py:114"),
    _rule(tensor_ranks_stay_in_a_node, "workers/rollout/vllm_rollout/vllm_async_server.py:385"),
    _rule(expert_ranks_are_all_of_a_replica, "workers/config/rollout.py"),
    _rule(only_tensorrt_pipelines, "workers/config/rollout.py"),
    _rule(model_ranks_divide_the_gpus, "utils/config.py: validate_config; Megatron-Core"),
    _rule(expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    _rule(mini_batches_divide, "workers/engine_workers.py:267"),
    _rule(micro_batches_divide, "workers/engine/utils.py:125"),
    _rule(micro_batches_are_given, "utils/config.py: validate_config"),
    _rule(micro_batches_are_given_once, "utils/config.py: validate_config"),
    _rule(batches_hold_a_mini_batch, "utils/config.py: validate_config"),
    _rule(batches_balance, "utils/seqlen_balancing.py:147"),
    _rule(budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    _rule(log_prob_budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    _rule(actor_and_log_probs_batch_alike, "workers/engine_workers.py:616"),
    _rule(sequences_fit_the_engine, "vLLM, at the start of the engine"),
    _rule(sequences_fit_the_model, "vLLM, at the start of the engine"),
    _rule(sequence_ranks_divide_the_heads, "models/transformers/monkey_patch.py:344"),
    _rule(sequence_ranks_want_packing, "utils/config.py: validate_config"),
    _rule(shards_divide_the_gpus, "PyTorch, init_device_mesh"),
    _rule(models_come_by_the_bridge, "workers/engine/megatron/transformer_impl.py:191"),
    _rule(interleaved_stages_take_whole_rounds, "workers/engine/megatron/transformer_impl.py:916"),
    _rule(separate_batches_are_sync_steps, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(separate_rollout_has_nodes, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(separate_weights_need_a_transport, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(async_reward_models_have_a_pool, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(reward_pools_have_gpus, "trainer/ppo/v1/trainer_base.py:825"),
    _rule(reward_models_have_a_path, "trainer/config/reward"),
    _rule(
        async_keeps_no_hybrid_engine, "experimental/fully_async_policy/fully_async_rollouter.py:350"
    ),
    _rule(
        async_takes_prompts_one_by_one,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    _rule(async_counts_are_sound, "experimental/fully_async_policy/fully_async_rollouter.py:350"),
    _rule(async_keeps_log_probs, "experimental/fully_async_policy/fully_async_rollouter.py:350"),
    _rule(adapters_have_a_rank_of_the_engine, "utils/config.py: validate_config"),
    _rule(losses_are_aggregated, "workers/config/actor.py"),
    _rule(generation_is_asynchronous, "workers/config/rollout.py"),
    _rule(validation_samples_with_a_temperature, "utils/config.py: validate_config"),
    _rule(dynamic_context_needs_a_length, "utils/config.py: validate_config"),
    _rule(disaggregation_has_an_engine, "workers/config/rollout.py"),
)
