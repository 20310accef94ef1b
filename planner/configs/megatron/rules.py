"""What holds of Megatron's flags and a rollout's only at run time: rules that slime has and what was forked from it."""

from collections.abc import Iterator
from math import prod
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.megatron.model import written_model
from rlplan.planner.configs.megatron.reading import (
    MEGATRON,
    compares,
    gpus_of,
    gpus_of_a_node,
    is_async,
    updates_a_step,
)
from rlplan.planner.configs.reading.settings import RoleSettings, Settings

ARGUMENTS: Final = "slime/utils/arguments.py: slime_validate_args"
SGLANG: Final = "slime/backends/sglang_utils/arguments.py: validate_args"
SCHEDULE: Final = "slime/utils/dp_schedule.py: build_dp_schedule"
OF_MEGATRON: Final = "Megatron-LM, megatron/training/arguments.py: validate_args"
CORE: Final = "Megatron-Core, transformer/transformer_config.py"
NEED_NORMALISED: Final = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


def is_megatron(settings: Settings) -> bool:
    """Tell whether Megatron trains."""
    return settings.word("backend") == MEGATRON


def _actor(settings: Settings) -> RoleSettings:
    return settings.of(MEGATRON, "actor")


def _samples(settings: Settings) -> int:
    return settings.whole("prompts") * settings.whole("samples")


def _copies(settings: Settings) -> int:
    """Return the data-parallel ranks; 0 where sizes do not divide."""
    gpus, own = gpus_of(settings)[0], _actor(settings)
    size = prod(own.whole(name) for name in ("tp", "pp", "cp")) if is_megatron(settings) else 1
    return gpus // size if divides(size, gpus) else 0


def async_trains_apart(settings: Settings) -> Iterator[Broken]:
    """Generate on GPUs of its own where generation goes on beside training."""
    holds = not (is_async(settings) and settings.on("colocate"))
    yield from unless(
        holds, "colocate", "is on, and train_async.py generates beside training", "off"
    )


def generation_has_gpus(settings: Settings) -> Iterator[Broken]:
    """Say how many GPUs generate where they are not those that train."""
    holds = settings.on("colocate") or settings.optional_whole("rollout_gpus") is not None
    problem = "is missing, and colocate is off"
    yield from unless(holds, "rollout_gpus", problem, "at least 1, or --colocate")


def model_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs that train out to whole copies of the model."""
    if is_megatron(settings):
        gpus, own = gpus_of(settings)[0], _actor(settings)
        size = prod(own.whole(name) for name in ("tp", "pp", "cp"))
        key = own.key_of("cp" if own.whole("tp") <= 1 < own.whole("cp") else "tp")
        problem = f"TP x PP x CP = {size} does not divide the {gpus} GPUs that train"
        yield from unless(divides(size, gpus), key, problem, f"divisors of {gpus}")


def expert_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs that train out to whole groups of experts."""
    own = _actor(settings)
    if is_megatron(settings) and own.whole("ep") > 1:
        gpus, width = gpus_of(settings)[0], own.optional_whole("expert_tp") or own.whole("tp")
        size = own.whole("ep") * width * own.whole("pp")
        problem = f"ETP x EP x PP = {size} does not divide the {gpus} GPUs that train"
        yield from unless(divides(size, gpus), own.key_of("ep"), problem, f"divisors of {gpus}")


def experts_share_sequences(settings: Settings) -> Iterator[Broken]:
    """Share sequences out where experts and tensor-parallel ranks go together."""
    own, key = _actor(settings), "sequence-parallel"
    has_experts = (settings.optional_whole("num_experts") or 0) > 0 or own.whole("ep") > 1
    spread = own.whole("tp") > 1 and has_experts and is_megatron(settings)
    problem = "is off beside experts and tensor-parallel ranks"
    yield from unless(not spread or bool(settings.given(key)), key, problem, f"--{key}")


def stages_have_layers_of_their_own(settings: Settings) -> Iterator[Broken]:
    """Say how many layers the first and the last stage have only where there are several."""
    own = _actor(settings)
    for name in ("first_stage_layers", "last_stage_layers") if is_megatron(settings) else ():
        holds = own.whole("pp") > 1 or own.optional_whole(name) is None
        yield from unless(holds, own.key_of(name), "is given, and there is one stage", "none")


def recomputation_says_how(settings: Settings) -> Iterator[Broken]:
    """Say how whole layers are computed again, and of how many; of parts of layers neither."""
    own = _actor(settings)
    if not is_megatron(settings) or own.value("granularity") is None:
        return
    whole = own.value("granularity") == "full"
    for name, allowed in (("recompute_method", "uniform"), ("recompute_num_layers", "1")):
        given = own.value(name) is not None
        if whole:
            problem = "is missing beside recompute-granularity full"
            yield from unless(given, own.key_of(name), problem, allowed)
        else:
            problem = "is given beside recompute-granularity selective"
            yield from unless(not given, own.key_of(name), problem, "none")


def engines_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs that generate out to whole engines."""
    train, rollout = gpus_of(settings)
    gpus, size = rollout or train, settings.whole("rollout_tp")
    problem = f"does not divide the {gpus} GPUs that generate"
    yield from unless(divides(size, gpus), "rollout_tp", problem, f"divisors of {gpus}")


def engine_ranks_divide_its_gpus(settings: Settings) -> Iterator[Broken]:
    """Share an engine's GPUs out to whole stages, experts and groups of requests."""
    gpus = settings.whole("rollout_tp")
    for name in ("engine_pp", "engine_ep", "engine_dp"):
        problem = f"does not divide an engine's {gpus} GPUs"
        holds = divides(settings.whole(name), gpus)
        yield from unless(holds, name, problem, f"divisors of {gpus}")


def groups_of_requests_share_attention(settings: Settings) -> Iterator[Broken]:
    """Share requests out inside an engine only with attention by groups."""
    holds = settings.whole("engine_dp") <= 1 or settings.on("dp_attention")
    problem = "is above 1, and sglang-enable-dp-attention is off"
    yield from unless(holds, "engine_dp", problem, "1, or --sglang-enable-dp-attention")


def batches_say_the_same(settings: Settings) -> Iterator[Broken]:
    """Say the size of an update and the updates of a step only where both mean the same."""
    if settings.is_given("steps_a_rollout") and settings.is_given("update_sequences"):
        size = _samples(settings) // max(1, settings.whole("steps_a_rollout"))
        holds = settings.whole("update_sequences") == size
        problem = f"is not the {size} samples that num-steps-per-rollout leaves an update"
        yield from unless(holds, "update_sequences", problem, str(size))


def updates_have_samples(settings: Settings) -> Iterator[Broken]:
    """Leave an update no more samples than a step has, and whole micro-batches for every copy of the model.

    Megatron asks for these where they are packed too (num_microbatches_calculator.py).
    """
    samples, copies = _samples(settings), _copies(settings)
    if not copies:
        return
    if settings.is_given("update_sequences"):
        size, name = settings.whole("update_sequences"), "update_sequences"
        problem = f"is above the {samples} samples of a step"
        yield from unless(size <= samples, name, problem, f"at most {samples}")
    else:
        size, name = samples // updates_a_step(settings, samples, copies), "steps_a_rollout"
    problem = f"leaves {size} samples to {copies} copies of the model"
    yield from unless(size >= copies, name, problem, f"updates of {copies} samples or more")
    own = _actor(settings)
    part = own.whole("micro_batch") * copies
    if (is_megatron(settings) or not own.on("dynamic")) and size >= copies:
        problem = f"x {copies} copies = {part} does not divide an update's {size} samples"
        yield from unless(divides(part, size), own.key_of("micro_batch"), problem, "a divisor")


def budgets_are_told(settings: Settings) -> Iterator[Broken]:
    """Say how many tokens a micro-batch has where they count."""
    own = _actor(settings)
    holds = not own.on("dynamic") or own.optional_whole("token_budget") is not None
    problem = "is missing beside use-dynamic-batch-size"
    yield from unless(holds, own.key_of("token_budget"), problem, "tokens, at least 1")
    key = "balance-by-flops"
    holds = own.on("dynamic") or not settings.given(key)
    yield from unless(holds, key, "is on, and use-dynamic-batch-size is off", "off")


def more_are_begun_than_learnt_from(settings: Settings) -> Iterator[Broken]:
    """Begin at least as many prompts as a step learns from."""
    begun, prompts = settings.optional_whole("begun_prompts"), settings.whole("prompts")
    holds = begun is None or begun >= prompts
    problem = f"is below rollout-batch-size {prompts}"
    yield from unless(holds, "begun_prompts", problem, f"at least {prompts}")


def one_penalty_is_on(settings: Settings) -> Iterator[Broken]:
    """Weigh the penalty in rewards or in the loss, not in both."""
    holds = not (settings.number("kl_reward_weight") and settings.number("kl_loss_weight"))
    yield from unless(holds, "kl_loss_weight", "is not 0 beside kl-coef", "0")


def references_are_loaded(settings: Settings) -> Iterator[Broken]:
    """Say where the reference is where the actor is compared with it."""
    holds = not compares(settings) or settings.given(settings.key_of("reference_path")) is not None
    problem = "is missing, and the actor is compared with a reference"
    yield from unless(holds, "reference_path", problem, "a checkpoint of Megatron's")


def weights_without_copies_are_one_model_s(settings: Settings) -> Iterator[Broken]:
    """Keep copies of weights in host memory where the model on the GPUs is switched between several."""
    own = _actor(settings)
    if not is_megatron(settings) or not own.on("without_host_copy"):
        return
    switched = compares(settings) or settings.on("keeps_old_actor") or _teaches(settings)
    problem = (
        "is on, and the one model on the GPUs is switched between several, whose copies it needs"
    )
    yield from unless(not switched, own.key_of("without_host_copy"), problem, "off")


def _teaches(settings: Settings) -> bool:
    return settings.on("distils") and settings.value("teacher_kind") == MEGATRON


def advantages_are_normalised(settings: Settings) -> Iterator[Broken]:
    """Normalise advantages where REINFORCE++ makes them."""
    key, given = "normalize-advantages", settings.given(settings.key_of("estimator"))
    holds = given not in NEED_NORMALISED or bool(settings.given(key))
    yield from unless(holds, key, f"is off, and {given} needs it", f"--{key}")


def ratios_are_corrected_once(settings: Settings) -> Iterator[Broken]:
    """Take the engine's log-probabilities, or correct for them, not both; a function makes metrics of them."""
    key, function = "use-tis", "custom-tis-function-path"
    holds = not (settings.on("rollout_log_probs") and settings.given(key))
    yield from unless(holds, key, "is on beside use-rollout-logprobs", "off")
    holds = not settings.on("mismatch_metrics") or settings.given(function) is not None
    yield from unless(holds, function, "is missing beside get-mismatch-metrics", "a function")


def teachers_are_told(settings: Settings) -> Iterator[Broken]:
    """Say how a teacher is asked, and where it is if Megatron loads it."""
    kind, path = settings.given("opd-type"), settings.given("opd-teacher-load")
    if not settings.on("distils"):
        problem = "is given, and use-opd is off"
        yield from unless(path is None, "opd-teacher-load", problem, "none, or --use-opd")
        return
    yield from unless(
        kind is not None, "opd-type", "is missing beside use-opd", "sglang or megatron"
    )
    if kind == "megatron":
        problem = "is missing beside opd-type megatron"
        yield from unless(path is not None, "opd-teacher-load", problem, "a checkpoint")
    if kind == "sglang":
        problem = "is given beside opd-type sglang"
        yield from unless(path is None, "opd-teacher-load", problem, "none")


def steps_are_told(settings: Settings) -> Iterator[Broken]:
    """Say how long training goes on, what it is validated on, and where weights are saved."""
    holds = any(settings.given(key) is not None for key in ("num-rollout", "num-epoch"))
    yield from unless(holds, "num-rollout", "is missing, and num-epoch is too", "steps")
    for key, needed in (
        ("eval-interval", ("eval-prompt-data", "eval-config")),
        ("save-interval", ("save",)),
    ):
        holds = settings.given(key) is None or any(
            settings.given(each) is not None for each in needed
        )
        yield from unless(holds, needed[0], f"is missing beside {key}", "a value")


def prompts_leave_a_token(settings: Settings) -> Iterator[Broken]:
    """Leave a response a token of the context."""
    prompt, total = settings.optional_whole("max_prompt"), settings.optional_whole("max_total")
    holds = prompt is None or total is None or prompt <= total - 1
    problem = f"leaves a response no token of rollout-max-context-len {total}"
    yield from unless(holds, "max_prompt", problem, f"at most {(total or 1) - 1}")


def rollouts_are_sampled(settings: Settings) -> Iterator[Broken]:
    """Draw responses, which greedy decoding does not."""
    holds = settings.number("temperature") > 0
    yield from unless(holds, "temperature", "is not above 0", "above 0")


def flags_are_the_checkpoint_s(settings: Settings) -> Iterator[Broken]:
    """Write out the model that the checkpoint's config.json has: both are compared, and its weights are loaded.

    A name in which a sheet's only stands may be of another model.
    """
    written = written_model(settings)
    if written.sheet is None or written.cut or not is_megatron(settings):
        return
    for each in written.differences:
        name = each.setting
        allowed = "none" if each.expected in {None, False} else str(each.expected)
        problem = f"is not what the model has by its sheet {written.sheet}"
        yield Broken(key=name, problem=problem, allowed=allowed, stops=written.whole)


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is None:
        return
    name = "max_response" if settings.is_given("max_response") else "max_total"
    most, positions = settings.optional_whole(name) or 0, model.max_positions
    problem = f"is above the {positions:,} positions of {model.name}"
    yield from unless(most <= positions, name, problem, f"at most {positions:,}")


def dropout_is_off(settings: Settings) -> Iterator[Broken]:
    """Switch off what Megatron drops by default, a tenth of attention and of hidden states."""
    for key in ("attention-dropout", "hidden-dropout") if is_megatron(settings) else ():
        if settings.given(key) != 0:
            problem = "is not 0: updates drop what generation does not"
            yield Broken(key=key, problem=problem, allowed=f"--{key} 0.0", stops=False)


def nodes_say_their_gpus(settings: Settings) -> Iterator[Broken]:
    """Say how many GPUs a node has where engines stand on several of fewer than 8."""
    gpus, usual = gpus_of_a_node(settings), 8
    several = settings.whole("actor_nodes") > 1 and settings.on("colocate")
    if several and gpus < usual and settings.optional_whole("gpus_per_node") is None:
        problem = f"is missing, and nodes have {gpus} GPUs: engines count on {usual}"
        yield Broken(key="gpus_per_node", problem=problem, allowed=str(gpus), stops=False)


RULES: Final = (
    Rule(async_trains_apart, "slime/train_async.py"),
    Rule(generation_has_gpus, "slime/ray/placement_group.py"),
    Rule(model_ranks_divide_the_gpus, OF_MEGATRON),
    Rule(expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    Rule(experts_share_sequences, "Megatron-Core, transformer/moe/moe_layer.py"),
    Rule(
        stages_have_layers_of_their_own, "slime/backends/megatron_utils/arguments.py: validate_args"
    ),
    Rule(recomputation_says_how, CORE),
    Rule(engines_divide_the_gpus, "slime/ray/rollout.py"),
    Rule(engine_ranks_divide_its_gpus, SGLANG),
    Rule(groups_of_requests_share_attention, SGLANG),
    Rule(batches_say_the_same, ARGUMENTS),
    Rule(updates_have_samples, SCHEDULE),
    Rule(budgets_are_told, ARGUMENTS),
    Rule(more_are_begun_than_learnt_from, ARGUMENTS),
    Rule(one_penalty_is_on, ARGUMENTS),
    Rule(references_are_loaded, ARGUMENTS),
    Rule(weights_without_copies_are_one_model_s, "slime/utils/tensor_backper.py"),
    Rule(advantages_are_normalised, ARGUMENTS),
    Rule(ratios_are_corrected_once, ARGUMENTS),
    Rule(teachers_are_told, ARGUMENTS),
    Rule(steps_are_told, ARGUMENTS),
    Rule(prompts_leave_a_token, ARGUMENTS),
    Rule(rollouts_are_sampled, ARGUMENTS),
    Rule(
        flags_are_the_checkpoint_s,
        "slime/backends/megatron_utils/arguments.py: _hf_validate_args",
    ),
    Rule(sequences_fit_the_model, "SGLang, at the start of the engine"),
    Rule(dropout_is_off, OF_MEGATRON),
    Rule(nodes_say_their_gpus, "slime/utils/arguments.py: --num-gpus-per-node"),
)
