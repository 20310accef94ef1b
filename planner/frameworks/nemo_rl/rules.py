"""What NeMo-RL asks for when its workers start: nemo_rl/algorithms, models/policy and models/generation."""

from collections.abc import Iterator
from math import prod
from typing import Final

from rlplan.job import Role
from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.frameworks.nemo_rl.reading import distils, gpus_of_policy, nodes_of_policy
from rlplan.profiles.sheets import load_model, model_names

# The last version that trained by FSDP1 where a policy switches DTensor off (pull request 614 took it away).
OF_FSDP1: Final = "0.2"


def _of(settings: Settings, role: Role = "actor") -> RoleSettings:
    return settings.of("megatron" if settings.on("megatron") else "dtensor", role)


def _apart(settings: Settings) -> int:
    """Return the GPUs that only generate."""
    if settings.on("colocated"):
        return 0
    own = settings.optional_whole("rollout_gpus_per_node")
    if nodes_of_policy(settings) == 1:
        return own or 0
    return (settings.optional_whole("rollout_nodes") or 0) * (
        own or settings.whole("gpus_per_node")
    )


def _train_gpus(settings: Settings) -> int:
    return gpus_of_policy(settings) - _apart(settings)


def _copies(settings: Settings, role: Role) -> int:
    """Return the data-parallel ranks of a role; 0 where its sizes do not divide."""
    size = prod(_of(settings, role).whole(name) for name in ("tp", "pp", "cp"))
    gpus = _train_gpus(settings)
    return gpus // size if divides(size, gpus) else 0


def _roles(settings: Settings) -> tuple[Role, ...]:
    """Return the roles whose models are trained."""
    return ("actor", "critic") if settings.value("critic_prompts") is not None else ("actor",)


def _samples(settings: Settings) -> int:
    return settings.whole("prompts") * settings.whole("samples")


def model_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the trainer's GPUs out to whole copies of the model."""
    gpus = _train_gpus(settings)
    for role in _roles(settings):
        own = _of(settings, role)
        size = prod(own.whole(name) for name in ("tp", "pp", "cp"))
        key = own.key_of("cp" if own.whole("tp") <= 1 < own.whole("cp") else "tp")
        problem = f"TP x PP x CP = {size} of the {role} does not divide the {gpus} GPUs that train"
        yield from unless(divides(size, gpus), key, problem, f"divisors of {gpus}")


def teachers_pack_without_sequence_parallelism(settings: Settings) -> Iterator[Broken]:
    """Distil with DTensor's sequence parallelism only where sequences are not packed, student's and teacher's alike."""
    if not distils(settings):
        return
    roles: dict[Role, str] = {"actor": "student", "teacher": "teacher"}
    for role, who in roles.items():
        megatron = settings.on("megatron" if role == "actor" else "teacher_megatron")
        packs = settings.of("dtensor", role).on("packs")
        name = f"{who}_sequence_parallel"
        holds = megatron or not (packs and settings.on(name))
        problem = f"is on with sequence packing of the {who}"
        yield from unless(holds, name, problem, "false, or sequence_packing.enabled: false")


def students_have_their_teachers_vocabulary(settings: Settings) -> Iterator[Broken]:
    """Compare logits of equally many tokens."""
    student, teacher = actor_of(settings), None
    if distils(settings) and student is not None:
        sheet = model_of(settings.path("teacher_model"))
        teacher = load_model(sheet) if sheet in model_names() else None
    if student is None or teacher is None:
        return
    holds = student.vocab_size == teacher.vocab_size
    problem = (
        f"has {teacher.vocab_size:,} tokens in its vocabulary, the student {student.vocab_size:,}"
    )
    yield from unless(holds, "teacher_model", problem, "a teacher with the student's tokenizer")


def expert_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    gpus = _train_gpus(settings)
    if not settings.on("megatron"):
        return
    own = _of(settings)
    size = prod(own.whole(name) for name in ("ep", "expert_tp", "pp"))
    problem = f"ETP x EP x PP = {size} does not divide the {gpus} GPUs that train"
    yield from unless(divides(size, gpus), own.key_of("ep"), problem, f"divisors of {gpus}")


def replicas_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs that generate out to whole replicas of the engine."""
    backend, gpus = settings.word("backend"), _apart(settings) or gpus_of_policy(settings)
    size = settings.whole(f"{backend}_tp") * settings.whole(f"{backend}_pp")
    problem = f"TP x PP = {size} of generation does not divide its {gpus} GPUs"
    yield from unless(divides(size, gpus), f"{backend}_tp", problem, f"divisors of {gpus}")


def expert_ranks_are_tensor_groups(settings: Settings) -> Iterator[Broken]:
    """Share vLLM's experts out to whole tensor-parallel groups."""
    ep, tp = settings.whole("vllm_ep"), settings.whole("vllm_tp")
    holds = settings.word("backend") != "vllm" or ep == 1 or divides(tp, ep)
    yield from unless(holds, "vllm_ep", f"is no multiple of TP {tp}", f"1, or multiples of {tp}")


def updates_divide_the_step(settings: Settings) -> Iterator[Broken]:
    """Learn from a step's samples in whole updates."""
    samples, update = _samples(settings), settings.optional_whole("update_sequences")
    holds = update is None or divides(update, samples)
    problem = f"does not divide the {samples} samples of a step"
    yield from unless(holds, "update_sequences", problem, f"divisors of {samples}")


def updates_divide_over_ranks(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    update = settings.optional_whole("update_sequences")
    for role in _roles(settings):
        ranks = _copies(settings, role)
        holds = update is None or not ranks or divides(ranks, update)
        problem = f"does not divide over the {role}'s {ranks} data-parallel ranks"
        yield from unless(holds, "update_sequences", problem, f"multiples of {ranks}")


def micro_batches_divide(settings: Settings) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches where they are not packed."""
    update = settings.optional_whole("update_sequences")
    own, ranks = _of(settings), _copies(settings, "actor")
    packs = own.on("packs") or own.on("dynamic")
    if packs or update is None or not ranks or update % ranks:
        return
    samples = update // ranks
    problem = f"does not divide the {samples} samples of an update on a rank"
    holds = divides(own.whole("micro_batch"), samples)
    yield from unless(holds, own.key_of("micro_batch"), problem, f"divisors of {samples}")


def one_update_keeps_the_policy(settings: Settings) -> Iterator[Broken]:
    """Take the ratio for 1 only where a step has one update."""
    samples, update = _samples(settings), settings.optional_whole("update_sequences")
    holds = not settings.on("on_policy") or update in {None, samples}
    problem = f"is not the step's {samples} samples, and force_on_policy_ratio is on"
    yield from unless(holds, "update_sequences", problem, str(samples))


def generation_leaves_gpus_to_training(settings: Settings) -> Iterator[Broken]:
    """Take the engine's own nodes off the cluster, and leave some to training."""
    if settings.on("colocated"):
        return
    name = "rollout_gpus_per_node" if nodes_of_policy(settings) == 1 else "rollout_nodes"
    apart, world = _apart(settings), gpus_of_policy(settings)
    missing = "is missing, and generation has no other GPUs"
    yield from unless(apart > 0, name, missing, "at least 1")
    problem = f"leaves no GPU of the cluster's {world} to training"
    yield from unless(apart < world, name, problem, "fewer")


def async_generates_apart(settings: Settings) -> Iterator[Broken]:
    """Generate on GPUs of its own in asynchronous training, unless Megatron itself generates."""
    own = settings.value("backend") == "megatron"
    holds = own or not settings.on("async") or not settings.on("colocated")
    yield from unless(holds, "colocated", "is on in asynchronous training", "false")


def async_corrects_its_ratios(settings: Settings) -> Iterator[Broken]:
    """Correct for the policy that generated in asynchronous training."""
    key = "loss_fn.use_importance_sampling_correction"
    holds = not settings.on("async") or bool(settings.given(key))
    yield from unless(holds, key, "is off in asynchronous training", "true")


def async_engines_are_async(settings: Settings) -> Iterator[Broken]:
    """Generate by vLLM's asynchronous engine in asynchronous training."""
    key = "policy.generation.vllm_cfg.async_engine"
    holds = settings.word("backend") != "vllm" or bool(settings.given(key))
    holds = holds or not settings.on("async")
    yield from unless(holds, key, "is off in asynchronous training", "true")


def one_trainer_is_on(settings: Settings) -> Iterator[Broken]:
    """Train by Megatron or DTensor, not by both; a policy that switches both off has no trainer."""
    key = "policy.dtensor_cfg.enabled"
    on = settings.on("megatron")
    holds = not (on and settings.given(key))
    yield from unless(holds, key, "is on beside policy.megatron_cfg.enabled", "false")
    holds = on or settings.given(key) is not False or settings.sheet.version == OF_FSDP1
    problem = "is off where policy.megatron_cfg.enabled is not on, and nothing trains"
    yield from unless(holds, key, problem, "true, or policy.megatron_cfg.enabled=true")


def optimizers_on_the_host_are_there_whole(settings: Settings) -> Iterator[Broken]:
    """Want all of an optimizer on the host where any is: NeMo-RL moves it off the GPUs itself while it generates."""
    for role in _roles(settings):
        own = _of(settings, role)
        if role == "reference" or not own.on("cpu_optimizer"):
            continue
        key, share = own.key_of("host_fraction"), own.share("host_fraction", 0.0)
        problem = f"leaves {1 - share:.0%} of the optimizer on the GPU, beside {own.key_of('cpu_optimizer')}"
        yield from unless(share == 1, key, problem, "1.0")


def batches_are_made_in_one_way(settings: Settings) -> Iterator[Broken]:
    """Pack sequences or batch them by length, not both."""
    own = _of(settings)
    both = own.on("packs") and own.on("dynamic")
    problem = "is on beside policy.sequence_packing.enabled"
    yield from unless(not both, own.key_of("dynamic"), problem, "false")


def budgets_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Give a pack room for the longest sequence: one that is longer ends the run when it comes."""
    own, most = _of(settings), settings.whole("max_total")
    problem = f"holds no sequence of {most:,} tokens, and one that is longer than it ends the run"
    for name in ("packed_tokens", "infer_packed_tokens") if own.on("packs") else ():
        budget = own.optional_whole(name)
        if budget is not None and budget < most:
            yield Broken(
                key=own.key_of(name), problem=problem, allowed=f"at least {most:,}", stops=False
            )


def groups_have_samples(settings: Settings) -> Iterator[Broken]:
    """Draw several samples of a prompt where they are filtered."""
    holds = not settings.on("filters") or settings.whole("samples") > 1
    yield from unless(holds, "samples", "leaves nothing to filter", "2 or more")


def larger_rounds_are_filtered(settings: Settings) -> Iterator[Broken]:
    """Generate more prompts than a step's only where groups of equal rewards are dropped."""
    holds = settings.number("multiplier") == 1 or settings.on("filters")
    yield from unless(holds, "multiplier", "is not 1, and no group is dropped", "1")


def filters_wait_for_generation(settings: Settings) -> Iterator[Broken]:
    """Drop groups of equal rewards only where training waits for those that take their place."""
    holds = not (settings.on("filters") and settings.on("async"))
    yield from unless(holds, "filters", "is on in asynchronous training", "false")


def losses_go_together(settings: Settings) -> Iterator[Broken]:
    """Take ratios of sequences only into losses of sequences, and CISPO's into none of its opposites."""
    mean, dual = "loss_fn.token_level_loss", "loss_fn.ratio_clip_c"
    of_tokens = settings.loss("loss_mean") in {None, "token"}
    if settings.on("sequence_ratios"):
        problem = "is on beside sequence_level_importance_ratios"
        yield from unless(not of_tokens, mean, problem, "false")
    if not settings.on("cispo"):
        return
    yield from unless(of_tokens, mean, "is off beside use_cispo", "true")
    alone = settings.loss("clip_ratio_dual") is None
    yield from unless(alone, dual, "is set beside use_cispo", "null")
    for name in ("on_policy", "sequence_ratios"):
        yield from unless(not settings.on(name), name, "is on beside use_cispo", "false")


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is not None:
        positions = settings.positions() or model.max_positions
        problem = f"is above the {positions:,} positions of {model.name}"
        holds = settings.whole("max_total") <= positions
        yield from unless(holds, "max_total", problem, f"at most {positions:,}")


RULES: Final = (
    Rule(model_ranks_divide_the_gpus, "nemo_rl/models/policy"),
    Rule(optimizers_on_the_host_are_there_whole, "nemo_rl/models/megatron/setup.py"),
    Rule(expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    Rule(replicas_divide_the_gpus, "nemo_rl/models/generation"),
    Rule(expert_ranks_are_tensor_groups, "examples/configs/grpo_math_1B.yaml, vllm_cfg"),
    Rule(updates_divide_the_step, "nemo_rl/algorithms/grpo.py"),
    Rule(updates_divide_over_ranks, "nemo_rl/models/policy"),
    Rule(micro_batches_divide, "nemo_rl/models/policy"),
    Rule(one_update_keeps_the_policy, "examples/configs/grpo_math_1B.yaml, force_on_policy_ratio"),
    Rule(generation_leaves_gpus_to_training, "nemo_rl/algorithms/grpo.py: setup"),
    Rule(async_generates_apart, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    Rule(async_corrects_its_ratios, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    Rule(async_engines_are_async, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    Rule(one_trainer_is_on, "nemo_rl/models/policy/lm_policy.py"),
    Rule(batches_are_made_in_one_way, "nemo_rl/models/policy/lm_policy.py"),
    Rule(budgets_hold_the_longest, "nemo_rl/data/packing/algorithms.py"),
    Rule(groups_have_samples, "nemo_rl/algorithms/grpo.py"),
    Rule(larger_rounds_are_filtered, "nemo_rl/algorithms/grpo.py: setup"),
    Rule(filters_wait_for_generation, "examples/run_grpo.py"),
    Rule(teachers_pack_without_sequence_parallelism, "nemo_rl/algorithms/distillation.py: setup"),
    Rule(
        students_have_their_teachers_vocabulary,
        "nemo_rl/algorithms/distillation.py: check_vocab_equality",
    ),
    Rule(losses_go_together, "nemo_rl/algorithms/loss/loss_functions.py: ClippedPGLossFn"),
    Rule(sequences_fit_the_model, "vLLM, at the start of the engine"),
)
