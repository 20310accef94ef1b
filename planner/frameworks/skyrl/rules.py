"""What SkyRL finds only when a run starts, or a step of it: NovaSky-AI/SkyRL@a9564572e, below `skyrl/`."""

import math
from collections.abc import Iterator
from typing import Final

from rlplan.job import Role
from rlplan.planner.configs.broken import (
    Broken,
    Rule,
    divides,
    keys_are_known,
    ranks_divide_the_heads,
    unless,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.skyrl.reading import (
    FSDP,
    MEGATRON,
    OF_SAMPLED,
    STOPS,
    compares,
    gpus_of,
    is_fully_async,
    of_role,
    ranks_of,
    trainer_of,
    unlike_gpus,
)

CHECKS: Final = "train/utils/utils.py"
TRAINER: Final = "train/trainer.py"
ENDLESS: Final = "train/fully_async_trainer.py"
DISPATCH: Final = "backends/skyrl_train/distributed/dispatch.py"
CONFIG: Final = "train/config/config.py"
TEMPORAL: Final = ("gae", "reinforce++")
BOUND_LOSSES: Final = ("clip_cov", "kl_cov")
NORMALISED: Final = "seq_mean_token_sum_norm"
LEGACY_MEAN: Final = "token_mean_legacy"


def _trained(settings: Settings) -> Iterator[tuple[Role, str]]:
    """Yield the roles that learn, each with the setting of its prompts of an update."""
    yield "actor", "mini_prompts"
    if settings.is_given("critic_model"):
        yield "critic", "critic_mini_prompts"


def updates_divide_the_step(settings: Settings) -> Iterator[Broken]:
    """Cut a step's prompts into whole updates."""
    prompts = settings.whole("prompts")
    for _, name in _trained(settings):
        problem = f"does not divide trainer.train_batch_size {prompts}"
        holds = divides(settings.whole(name), prompts)
        yield from unless(holds, name, problem, f"divisors of {prompts}")


def ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Lay out each role over all of its GPUs."""
    roles: tuple[Role, ...] = ("actor", "reference") if compares(settings) else ("actor",)
    for role in roles:
        own, gpus = of_role(settings, role), gpus_of(settings, role)
        sizes = {name: own.whole(name) for name in ("tp", "pp", "cp") if name in own.names}
        key = own.key_of(max(sizes, key=lambda name: sizes[name]))
        problem = f"the sizes take {math.prod(sizes.values())} GPUs, which do not divide {gpus}"
        yield from unless(
            ranks_of(settings, role) > 0, key, problem, "sizes whose product divides it"
        )


def expert_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    if trainer_of(settings) != MEGATRON:
        return
    own, gpus = of_role(settings, "actor"), gpus_of(settings, "actor")
    ep, pp = own.whole("ep"), own.whole("pp")
    width = own.optional_whole("expert_tp") or own.whole("tp")
    problem = f"x expert TP {width} x PP {pp} does not divide {gpus} GPUs"
    yield from unless(
        ep == 1 or divides(ep * width * pp, gpus), own.key_of("ep"), problem, "a divisor"
    )


def updates_reach_every_rank(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank whole micro-batches of each update."""
    for role, name in _trained(settings):
        ranks, own = ranks_of(settings, role), of_role(settings, role)
        if not ranks:
            continue
        samples = settings.whole(name) * settings.whole("samples") // ranks
        problem = f"x generator.n_samples_per_prompt leaves some of the {role}'s {ranks} ranks none"
        yield from unless(samples > 0, name, problem, f"samples for {ranks} ranks")
        size = own.whole("micro_batch")
        problem = f"does not divide the {samples} samples of an update on a rank of the {role}"
        holds = samples == 0 or divides(size, samples)
        yield from unless(holds, own.key_of("micro_batch"), problem, f"divisors of {samples}")


def updates_are_shared_out_evenly(settings: Settings) -> Iterator[Broken]:
    """Cut an update's samples into as many for each rank, in versions that neither fill them up nor leave some out."""
    if settings.word("uneven_updates") != STOPS:
        return
    for role, name in _trained(settings):
        ranks, samples = ranks_of(settings, role), settings.whole("samples")
        if not ranks:
            continue
        problem = f"x generator.n_samples_per_prompt {samples} does not divide by the {role}'s {ranks} ranks"
        holds = divides(ranks, settings.whole(name) * samples)
        yield from unless(
            holds, name, problem, f"a multiple of {ranks // math.gcd(ranks, samples)}"
        )


def steps_reach_every_rank(settings: Settings) -> Iterator[Broken]:
    """Give all ranks of policy and reference a sample of each step."""
    ranks = [ranks_of(settings, "actor")]
    ranks += [ranks_of(settings, "reference")] if compares(settings) else []
    samples = settings.whole("prompts") * settings.whole("samples")
    holds = not all(ranks) or samples >= math.lcm(*ranks)
    problem = f"makes {samples} samples, fewer than ranks share"
    yield from unless(holds, "prompts", problem, f"{math.lcm(*ranks)} samples and more")


def engines_fill_the_policys_gpus(settings: Settings) -> Iterator[Broken]:
    """Generate on all GPUs of the policy where they are shared."""
    problem = unlike_gpus(settings)
    if problem is not None:
        yield Broken(key="engines", problem=problem[0], allowed=problem[1])


def shared_gpus_are_as_many(settings: Settings) -> Iterator[Broken]:
    """Give roles that share GPUs the same ones."""
    everything = settings.on("colocated")
    roles = list[Role]()
    if compares(settings) and (everything or settings.on("beside_reference")):
        roles.append("reference")
    if everything and settings.is_given("critic_model"):
        roles.append("critic")
    own = gpus_of(settings, "actor")
    for role in roles:
        gpus = gpus_of(settings, role)
        problem = f"gives the {role} {gpus} GPUs, which shares the policy's {own}"
        yield from unless(gpus == own, f"{role}_gpus_per_node", problem, "the policy's")


def advantages_have_a_critic(settings: Settings) -> Iterator[Broken]:
    """Name a critic's model where advantages are of its values."""
    needs = settings.word("estimator") == "ppo"
    holds = not needs or settings.is_given("critic_model")
    yield from unless(holds, "critic_model", "is missing, and gae needs a critic", "a model")


def penalties_go_to_one_place(settings: Settings) -> Iterator[Broken]:
    """Put the penalty into rewards or into the loss."""
    holds = not (settings.on("kl_in_reward") and settings.on("kl_loss"))
    yield from unless(holds, "kl_in_reward", "is on beside use_kl_loss", "one of the two")


def engines_spread_experts_over_all_ranks(settings: Settings) -> Iterator[Broken]:
    """Spread an engine's experts over all of its ranks."""
    ranks = settings.whole("rollout_tp") * settings.whole("rollout_dp")
    ep = settings.whole("rollout_ep")
    problem = f"is not the engine's TP x DP, {ranks}"
    yield from unless(ep <= 1 or ep == ranks, "rollout_ep", problem, f"1 or {ranks}")


def some_engines_write(settings: Settings) -> Iterator[Broken]:
    """Leave engines that write where others only read prompts."""
    if settings.on("prefills_apart"):
        engines = settings.whole("engines")
        holds = 0 < settings.whole("prefillers") < engines
        yield from unless(holds, "prefillers", f"of {engines} engines leaves none", "1 to one less")


def megatron_trains_no_critic(settings: Settings) -> Iterator[Broken]:
    """Train critics by FSDP alone."""
    holds = trainer_of(settings) != MEGATRON or not settings.is_given("critic_model")
    yield from unless(holds, "critic_model", "is trained by FSDP alone", "trainer.strategy=fsdp")


def megatron_has_no_ulysses(settings: Settings) -> Iterator[Broken]:
    """Cut sequences by Megatron's own context parallelism."""
    if trainer_of(settings) != MEGATRON:
        return
    for role in ("actor", "reference"):
        key = f"{settings.sheet.roles[role]}.sequence_parallel_size"
        given = settings.given(key)
        problem = "is of FSDP, and Megatron has context_parallel_size"
        yield from unless(given in {None, 1}, key, problem, "1")


def context_ranks_want_packing(settings: Settings) -> Iterator[Broken]:
    """Strip padding where sequences are cut over ranks."""
    if trainer_of(settings) == MEGATRON and not settings.on("packs"):
        own = of_role(settings, "actor")
        yield from unless(own.whole("cp") == 1, own.key_of("cp"), "wants rows without padding", "1")


def sequence_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give each of Ulysses' ranks equally many heads."""
    if trainer_of(settings) == FSDP:
        yield from ranks_divide_the_heads(of_role(settings, "actor"), "cp")


def single_turns_read_their_prompt(settings: Settings) -> Iterator[Broken]:
    """Let a turn read at least its prompt, and a single one no more."""
    single, prompt = settings.whole("turns") == 1, settings.whole("max_prompt")
    most = settings.whole("max_input")
    holds = most == prompt if single else most >= prompt
    allowed = f"{prompt}" if single else f"{prompt} or more"
    yield from unless(holds, "max_input", f"beside prompts of {prompt} tokens", allowed)


def sums_have_a_norm(settings: Settings) -> Iterator[Broken]:
    """Say by what sums of tokens are divided."""
    sums = settings.given(settings.key_of("reduction")) == NORMALISED
    holds = not sums or settings.given("trainer.algorithm.max_seq_len") is not None
    problem = f"is missing, and {NORMALISED} divides by it"
    yield from unless(holds, "trainer.algorithm.max_seq_len", problem, "tokens")


def steps_have_one_advantage(settings: Settings) -> Iterator[Broken]:
    """Compare outcomes of episodes where turns are sequences of their own."""
    if not settings.on("step_wise"):
        return
    given = settings.given(settings.key_of("estimator"))
    problem = "makes advantages token by token, and turns are trained apart"
    yield from unless(given not in TEMPORAL, "estimator", problem, "grpo, rloo, maxrl")
    mean = settings.given(settings.key_of("reduction"))
    yield from unless(
        mean != LEGACY_MEAN, "reduction", "is not for turns that are trained apart", "token_mean"
    )


def corrections_are_of_known_losses(settings: Settings) -> Iterator[Broken]:
    """Correct for the engine's probabilities in losses that have them."""
    corrects = settings.value("importance_ratio") or settings.value("sequence_mask")
    corrects = corrects or settings.on("importance_switch")
    loss = settings.given(settings.key_of("policy_loss"))
    holds = not corrects or loss not in BOUND_LOSSES
    yield from unless(holds, "policy_loss", "has no correction of samplers", "another loss")


def few_prompts_are_under_way(settings: Settings) -> Iterator[Broken]:
    """Have a mini-batch of prompts under way at least, and no more than staleness allows."""
    if not is_fully_async(settings):
        return
    mini, workers = settings.whole("mini_prompts"), settings.whole("workers")
    most = mini * (settings.whole("staleness") + 1)
    yield from unless(
        mini <= workers <= most, "workers", f"beside updates of {mini} prompts", f"{mini} to {most}"
    )


def endless_runs_are_apart(settings: Settings) -> Iterator[Broken]:
    """Run without an end only with engines apart, one update a step, and neither batches nor filters."""
    if not is_fully_async(settings):
        return
    mini = settings.whole("mini_prompts")
    yield from unless(
        not settings.on("colocated"), "colocated", "is on in a run without an end", "false"
    )
    problem = f"is not the {mini} prompts of an update, as a run without an end has it"
    yield from unless(settings.whole("prompts") == mini, "prompts", problem, f"{mini}")
    holds = settings.value("resampling") is None
    yield from unless(holds, "resampling", "is not done in a run without an end", "null")
    yield from unless(not settings.on("batched"), "batched", "cannot be paused", "false")


def endless_runs_learn_from_sampled_log_probs(settings: Settings) -> Iterator[Broken]:
    """Learn by the log-probabilities that the engine sampled by, since older weights are not kept."""
    if not is_fully_async(settings):
        return
    meant = settings.word("policy_loss")
    holds = meant == OF_SAMPLED or (meant == "cispo" and settings.word("cispo_anchor") == "rollout")
    problem = "needs log-probabilities of weights that a run without an end does not keep"
    yield from unless(
        holds, "policy_loss", problem, "rollout_is, dppo, cispo with cispo_anchor=rollout"
    )


def adapters_go_by_nccl(settings: Settings) -> Iterator[Broken]:
    """Send no differences of files where an adapter is trained."""
    holds = settings.whole("lora_rank") < 1 or settings.word("sync_backend") != "delta"
    yield from unless(holds, "sync_backend", "is not for adapters", "nccl")


def chunks_are_tokens(settings: Settings) -> Iterator[Broken]:
    """Make log-probabilities in chunks, which only Megatron can leave out; only it fuses the head."""
    if trainer_of(settings) == MEGATRON:
        return
    key = settings.key_of("logprob_chunk")
    holds = key not in settings.flat or settings.value("logprob_chunk") is not None
    yield from unless(holds, key, "is none, which only Megatron takes", "tokens")
    yield from unless(not settings.on("fuses_head"), "fuses_head", "is of Megatron alone", "false")


RULES: Final = (
    Rule(updates_divide_the_step, CHECKS),
    Rule(ranks_divide_the_gpus, CHECKS),
    Rule(expert_ranks_divide_the_gpus, CONFIG),
    Rule(updates_reach_every_rank, CHECKS),
    Rule(updates_are_shared_out_evenly, DISPATCH),
    Rule(steps_reach_every_rank, CHECKS),
    Rule(engines_fill_the_policys_gpus, CHECKS),
    Rule(shared_gpus_are_as_many, TRAINER),
    Rule(advantages_have_a_critic, CHECKS),
    Rule(penalties_go_to_one_place, CHECKS),
    Rule(engines_spread_experts_over_all_ranks, CHECKS),
    Rule(some_engines_write, CHECKS, since="0.2"),
    Rule(megatron_trains_no_critic, CHECKS),
    Rule(megatron_has_no_ulysses, CHECKS),
    Rule(context_ranks_want_packing, CHECKS),
    Rule(
        sequence_ranks_divide_the_heads, "backends/skyrl_train/distributed/ulysses/monkey_patch.py"
    ),
    Rule(single_turns_read_their_prompt, CHECKS),
    Rule(sums_have_a_norm, CHECKS, since="0.1"),
    Rule(steps_have_one_advantage, CHECKS, since="train-0.4"),
    Rule(corrections_are_of_known_losses, CHECKS),
    Rule(few_prompts_are_under_way, ENDLESS),
    Rule(endless_runs_are_apart, ENDLESS),
    Rule(endless_runs_learn_from_sampled_log_probs, ENDLESS, since="0.3"),
    Rule(adapters_go_by_nccl, CHECKS),
    Rule(chunks_are_tokens, CONFIG, since="0.3"),
    Rule(keys_are_known, CONFIG),
)
