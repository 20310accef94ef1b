"""Rules of verl on asynchronous modes, reward models, adapters and what else is chosen."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, divides, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.verl.rules.world import is_async, is_separate, is_tensorrt

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
