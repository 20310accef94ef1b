"""What NeMo-RL asks for when its workers start: nemo_rl/algorithms, models/policy and models/generation."""

from collections.abc import Iterator
from typing import Final

from planner.configs.broken import Broken, Check, Rule, Subject, divides, unless
from planner.configs.reading.settings import Settings
from planner.configs.teachers import nodes_of_policy
from rlplan.job import Role


def _trainer(settings: Settings) -> str:
    return "megatron" if settings.on("megatron") else "dtensor"


def _world(settings: Settings) -> int:
    return nodes_of_policy(settings) * settings.whole("gpus_per_node")


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
    return _world(settings) - _apart(settings)


def _size(settings: Settings, role: Role, name: str) -> int:
    return settings.whole_size(_trainer(settings), role, name, 1) or 1


def _copies(settings: Settings, role: Role) -> int:
    """Return the data-parallel ranks of a role; 0 where its sizes do not divide."""
    size = _size(settings, role, "tp") * _size(settings, role, "pp") * _size(settings, role, "cp")
    gpus = _train_gpus(settings)
    return gpus // size if divides(size, gpus) else 0


def _roles(settings: Settings) -> tuple[Role, ...]:
    return ("actor", "critic") if settings.value("critic_prompts") is not None else ("actor",)


def _samples(settings: Settings) -> int:
    return settings.whole("prompts") * settings.whole("samples")


def _of_async(settings: Settings) -> bool:
    return settings.on("async")


def model_ranks_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the trainer's GPUs out to whole copies of the model."""
    settings, gpus = subject.settings, _train_gpus(subject.settings)
    for role in _roles(settings):
        sizes = {name: _size(settings, role, name) for name in ("tp", "pp", "cp")}
        size = sizes["tp"] * sizes["pp"] * sizes["cp"]
        name = next((name for name in ("tp", "cp") if sizes[name] > 1), "tp")
        key = settings.key_of_size(_trainer(settings), role, name)
        problem = f"TP x PP x CP = {size} of the {role} does not divide the {gpus} GPUs that train"
        yield from unless(divides(size, gpus), key, problem, f"divisors of {gpus}")


def expert_ranks_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    settings, gpus = subject.settings, _train_gpus(subject.settings)
    if not settings.on("megatron"):
        return
    ep, etp, pp = (_size(settings, "actor", name) for name in ("ep", "expert_tp", "pp"))
    key = settings.key_of_size("megatron", "actor", "ep")
    problem = f"ETP x EP x PP = {ep * etp * pp} does not divide the {gpus} GPUs that train"
    yield from unless(divides(ep * etp * pp, gpus), key, problem, f"divisors of {gpus}")


def replicas_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the GPUs that generate out to whole replicas of the engine."""
    settings = subject.settings
    backend, gpus = settings.word("backend"), _apart(settings) or _world(settings)
    size = settings.whole(f"{backend}_tp") * settings.whole(f"{backend}_pp")
    problem = f"TP x PP = {size} of generation does not divide its {gpus} GPUs"
    yield from unless(
        divides(size, gpus), settings.key_of(f"{backend}_tp"), problem, f"divisors of {gpus}"
    )


def expert_ranks_are_tensor_groups(subject: Subject) -> Iterator[Broken]:
    """Share vLLM's experts out to whole tensor-parallel groups."""
    settings = subject.settings
    ep, tp = settings.whole("vllm_ep"), settings.whole("vllm_tp")
    holds = settings.word("backend") != "vllm" or ep == 1 or divides(tp, ep)
    yield from unless(
        holds, settings.key_of("vllm_ep"), f"is no multiple of TP {tp}", f"1, or multiples of {tp}"
    )


def updates_divide_the_step(subject: Subject) -> Iterator[Broken]:
    """Learn from a step's samples in whole updates."""
    settings = subject.settings
    samples, update = _samples(settings), settings.optional_whole("update_sequences")
    holds = update is None or divides(update, samples)
    problem = f"does not divide the {samples} samples of a step"
    yield from unless(holds, settings.key_of("update_sequences"), problem, f"divisors of {samples}")


def updates_divide_over_ranks(subject: Subject) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    settings, update = subject.settings, subject.settings.optional_whole("update_sequences")
    for role in _roles(settings):
        ranks = _copies(settings, role)
        holds = update is None or not ranks or divides(ranks, update)
        problem = f"does not divide over the {role}'s {ranks} data-parallel ranks"
        yield from unless(
            holds, settings.key_of("update_sequences"), problem, f"multiples of {ranks}"
        )


def micro_batches_divide(subject: Subject) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches where they are not packed."""
    settings, update = subject.settings, subject.settings.optional_whole("update_sequences")
    trainer, ranks = _trainer(settings), _copies(settings, "actor")
    packs = any(settings.size_is_on(trainer, "actor", name) for name in ("packs", "dynamic"))
    if packs or update is None or not ranks or update % ranks:
        return
    size = settings.whole_size(trainer, "actor", "micro_batch", 1) or 1
    key = settings.key_of_size(trainer, "actor", "micro_batch")
    problem = f"does not divide the {update // ranks} samples of an update on a rank"
    yield from unless(
        divides(size, update // ranks), key, problem, f"divisors of {update // ranks}"
    )


def one_update_keeps_the_policy(subject: Subject) -> Iterator[Broken]:
    """Take the ratio for 1 only where a step has one update."""
    settings = subject.settings
    samples, update = _samples(settings), settings.optional_whole("update_sequences")
    holds = not settings.on("on_policy") or update in {None, samples}
    problem = f"is not the step's {samples} samples, and force_on_policy_ratio is on"
    yield from unless(holds, settings.key_of("update_sequences"), problem, str(samples))


def generation_leaves_gpus_to_training(subject: Subject) -> Iterator[Broken]:
    """Take the engine's own nodes off the cluster, and leave some to training."""
    settings = subject.settings
    if settings.on("colocated"):
        return
    name = "rollout_gpus_per_node" if nodes_of_policy(settings) == 1 else "rollout_nodes"
    apart, world = _apart(settings), _world(settings)
    yield from unless(
        apart > 0,
        settings.key_of(name),
        "is missing, and generation has no other GPUs",
        "at least 1",
    )
    problem = f"leaves no GPU of the cluster's {world} to training"
    yield from unless(apart < world, settings.key_of(name), problem, "fewer")


def async_generates_apart(subject: Subject) -> Iterator[Broken]:
    """Generate on GPUs of its own in asynchronous training, unless Megatron itself generates."""
    settings = subject.settings
    own = settings.value("backend") == "megatron"
    holds = own or not _of_async(settings) or not settings.on("colocated")
    yield from unless(
        holds, settings.key_of("colocated"), "is on in asynchronous training", "false"
    )


def async_corrects_its_ratios(subject: Subject) -> Iterator[Broken]:
    """Correct for the policy that generated in asynchronous training."""
    settings, key = subject.settings, "loss_fn.use_importance_sampling_correction"
    given = settings.flat.get(key)
    holds = not _of_async(settings) or (given is not None and bool(given.value))
    yield from unless(holds, key, "is off in asynchronous training", "true")


def async_engines_are_async(subject: Subject) -> Iterator[Broken]:
    """Generate by vLLM's asynchronous engine in asynchronous training."""
    settings, key = subject.settings, "policy.generation.vllm_cfg.async_engine"
    given = settings.flat.get(key)
    holds = settings.word("backend") != "vllm" or (given is not None and bool(given.value))
    yield from unless(
        not _of_async(settings) or holds, key, "is off in asynchronous training", "true"
    )


def one_trainer_is_on(subject: Subject) -> Iterator[Broken]:
    """Train by Megatron or DTensor, not by both."""
    settings, key = subject.settings, "policy.dtensor_cfg.enabled"
    given = settings.flat.get(key)
    holds = not (settings.on("megatron") and given is not None and bool(given.value))
    yield from unless(holds, key, "is on beside policy.megatron_cfg.enabled", "false")


def batches_are_made_in_one_way(subject: Subject) -> Iterator[Broken]:
    """Pack sequences or batch them by length, not both."""
    settings, trainer = subject.settings, _trainer(subject.settings)
    both = all(settings.size_is_on(trainer, "actor", name) for name in ("packs", "dynamic"))
    key = settings.key_of_size(trainer, "actor", "dynamic")
    yield from unless(not both, key, "is on beside policy.sequence_packing.enabled", "false")


def budgets_hold_the_longest(subject: Subject) -> Iterator[Broken]:
    """Give a micro-batch room for the longest sequence."""
    settings, trainer = subject.settings, _trainer(subject.settings)
    longest = settings.whole("max_total")
    for switch, name in (("packs", "packed_tokens"), ("dynamic", "token_budget")):
        budget = settings.whole_size(trainer, "actor", name)
        if settings.size_is_on(trainer, "actor", switch) and budget is not None:
            key = settings.key_of_size(trainer, "actor", name)
            problem = f"holds no sequence of {longest:,} tokens"
            cp = _size(settings, "actor", "cp")
            yield from unless(
                budget * cp >= longest, key, problem, f"at least {-(-longest // cp):,}"
            )


def groups_have_samples(subject: Subject) -> Iterator[Broken]:
    """Draw several samples of a prompt where they are filtered."""
    settings = subject.settings
    holds = not settings.on("filters") or settings.whole("samples") > 1
    yield from unless(holds, settings.key_of("samples"), "leaves nothing to filter", "2 or more")


def losses_go_together(subject: Subject) -> Iterator[Broken]:
    """Take ratios of sequences only into losses of sequences, and CISPO's into none of its opposites."""
    settings, mean, dual = subject.settings, "loss_fn.token_level_loss", "loss_fn.ratio_clip_c"
    of_tokens = settings.loss("loss_mean") in {None, "token"}
    if settings.on("sequence_ratios"):
        problem = "is on beside sequence_level_importance_ratios"
        yield from unless(not of_tokens, mean, problem, "false")
    if not settings.on("cispo"):
        return
    yield from unless(of_tokens, mean, "is off beside use_cispo", "true")
    yield from unless(
        settings.loss("clip_ratio_dual") is None, dual, "is set beside use_cispo", "null"
    )
    for name in ("on_policy", "sequence_ratios"):
        key = settings.key_of(name)
        yield from unless(not settings.on(name), key, "is on beside use_cispo", "false")


def sequences_fit_the_model(subject: Subject) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    settings, model = subject.settings, subject.actor
    if model is not None:
        positions = settings.positions() or model.max_positions
        problem = f"is above the {positions:,} positions of {model.name}"
        holds = settings.whole("max_total") <= positions
        yield from unless(holds, settings.key_of("max_total"), problem, f"at most {positions:,}")


def _rule(check: Check, source: str) -> Rule:
    return Rule(name=check.__name__.replace("_", "-"), source=source, check=check)


RULES: Final = (
    _rule(model_ranks_divide_the_gpus, "nemo_rl/models/policy"),
    _rule(expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    _rule(replicas_divide_the_gpus, "nemo_rl/models/generation"),
    _rule(expert_ranks_are_tensor_groups, "examples/configs/grpo_math_1B.yaml, vllm_cfg"),
    _rule(updates_divide_the_step, "nemo_rl/algorithms/grpo.py"),
    _rule(updates_divide_over_ranks, "nemo_rl/models/policy"),
    _rule(micro_batches_divide, "nemo_rl/models/policy"),
    _rule(one_update_keeps_the_policy, "examples/configs/grpo_math_1B.yaml, force_on_policy_ratio"),
    _rule(generation_leaves_gpus_to_training, "nemo_rl/algorithms/grpo.py: setup"),
    _rule(async_generates_apart, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    _rule(async_corrects_its_ratios, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    _rule(async_engines_are_async, "nemo_rl/algorithms/grpo.py: async_grpo_train"),
    _rule(one_trainer_is_on, "nemo_rl/models/policy/lm_policy.py"),
    _rule(batches_are_made_in_one_way, "nemo_rl/models/policy/lm_policy.py"),
    _rule(budgets_hold_the_longest, "nemo_rl/distributed/batched_data_dict.py"),
    _rule(groups_have_samples, "nemo_rl/algorithms/grpo.py"),
    _rule(losses_go_together, "nemo_rl/algorithms/loss/loss_functions.py: ClippedPGLossFn"),
    _rule(sequences_fit_the_model, "vLLM, at the start of the engine"),
)
