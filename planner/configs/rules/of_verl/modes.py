"""Rules of verl on asynchronous modes, reward models, adapters and what else is chosen."""

from collections.abc import Iterator
from typing import Final

from planner.configs.broken import Broken, Subject, divides, unless
from planner.configs.rules.of_verl.world import (
    is_async,
    is_separate,
)

LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
AGGREGATIONS: Final = (
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
)  # fmt: skip
ROLLOUT: Final = "actor_rollout_ref.rollout"


def separate_batches_are_sync_steps(subject: Subject) -> Iterator[Broken]:
    """Learn from a batch in as many updates as lie between two syncs."""
    settings = subject.settings
    if is_separate(subject):
        wanted = settings.whole("sync_step") * settings.whole("mini_prompts")
        problem = f"is not parameter_sync_step x ppo_mini_batch_size = {wanted}"
        yield from unless(
            settings.whole("prompts") == wanted, settings.key_of("prompts"), problem, str(wanted)
        )


def separate_rollout_has_nodes(subject: Subject) -> Iterator[Broken]:
    """Give separate generation GPUs of its own."""
    settings = subject.settings
    if is_separate(subject) or is_async(subject):
        for name in ("rollout_nodes", "rollout_gpus_per_node"):
            key = settings.key_of(name)
            yield from unless(
                settings.whole(name) > 0, key, "leaves generation no GPU", "at least 1"
            )


def separate_weights_need_a_transport(subject: Subject) -> Iterator[Broken]:
    """Bring weights to other GPUs by a back end that reaches them."""
    settings = subject.settings
    holds = not is_separate(subject) or settings.word("sync_backend") != "naive"
    problem = "reaches no other GPUs, and generation has its own"
    yield from unless(
        holds, settings.key_of("sync_backend"), problem, "nccl, nixl, mooncake, kimi_ckpt_engine"
    )


def async_reward_models_have_a_pool(subject: Subject) -> Iterator[Broken]:
    """Keep a reward model on GPUs of its own where generation does not stop."""
    settings = subject.settings
    runs_on = is_separate(subject) or is_async(subject)
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
    holds = not is_async(subject) or settings.value("hybrid") is False
    yield from unless(
        holds, settings.key_of("hybrid"), "is on in fully asynchronous training", "False"
    )


def async_takes_prompts_one_by_one(subject: Subject) -> Iterator[Broken]:
    """Leave batches to the queue in fully asynchronous training."""
    settings = subject.settings
    if is_async(subject):
        for name, wanted in (("prompts", 0), ("gen_prompts", 1)):
            key = settings.key_of(name)
            holds = settings.optional_whole(name) == wanted or not settings.is_given(name)
            yield from unless(
                holds, key, f"is not {wanted} in fully asynchronous training", str(wanted)
            )


def async_counts_are_sound(subject: Subject) -> Iterator[Broken]:
    """Bound how old samples may be, and sync at all."""
    settings = subject.settings
    if is_async(subject):
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
    holds = not is_async(subject) or settings.on("calculates_log_probs")
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
