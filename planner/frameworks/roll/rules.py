"""What ROLL finds only when a run starts, or a step of it: alibaba/ROLL@8eb27cc2d, below `roll/`."""

from collections.abc import Iterator
from typing import Final

from rlplan.job import Role
from rlplan.planner.configs.broken import Broken, Rule, divides, ranks_divide_the_heads, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.roll.devices import devices_of, placement_of
from rlplan.planner.frameworks.roll.reading import (
    FSDP,
    MEGATRON,
    PLAIN,
    copies_of,
    is_agentic,
    named_models,
    of_role,
    trainer_of,
    update_rows,
)

BASE: Final = "configs/base_config.py"
WORKER: Final = "configs/worker_config.py"
RLVR: Final = "pipeline/rlvr/rlvr_config.py"
EPISODES: Final = "pipeline/agentic/agentic_config.py"
STRATEGY: Final = "distributed/strategy/megatron_strategy.py"


def _roles(settings: Settings) -> Iterator[tuple[Role, int]]:
    """Yield the roles that have models of their own, and their GPUs."""
    for role in named_models(settings):
        devices = devices_of(settings, f"{role}_devices") or devices_of(settings, "actor_devices")
        yield role, len(devices)


def sequences_have_a_length(settings: Settings) -> Iterator[Broken]:
    """Say how long a response, or a sequence, may be."""
    holds = settings.optional_whole("max_response") or settings.optional_whole("max_total")
    yield from unless(bool(holds), "max_response", "is missing", "tokens, or sequence_length")


def sizes_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Lay each model out over all of its devices."""
    for role, gpus in _roles(settings):
        if trainer_of(settings, role) == PLAIN or not gpus:
            continue
        own = of_role(settings, role)
        names = [name for name in ("tp", "cp", "pp") if name in own.names]
        key = own.key_of(max(names, key=own.whole))
        problem = f"with the other sizes does not divide the {gpus} devices of the {role}"
        yield from unless(
            copies_of(settings, role, gpus) > 0, key, problem, "sizes whose product does"
        )


def engines_divide_their_devices(settings: Settings) -> Iterator[Broken]:
    """Share the engines' devices out to whole engines."""
    gpus = len(devices_of(settings, "rollout_devices"))
    size = settings.whole("rollout_tp") * settings.whole("rollout_pp")
    problem = f"x pipeline_parallel_size takes {size} devices, which do not divide {gpus}"
    yield from unless(divides(size, gpus), "rollout_tp", problem, f"divisors of {gpus}")


def prompts_reach_every_copy(settings: Settings) -> Iterator[Broken]:
    """Give every copy of Megatron's model equally many of a step's prompts."""
    gpus = len(devices_of(settings, "actor_devices"))
    copies = copies_of(settings, "actor", gpus)
    if trainer_of(settings) != MEGATRON or not copies:
        return
    problem = f"does not divide over {copies} copies"
    yield from unless(
        divides(copies, settings.whole("prompts")), "prompts", problem, f"a multiple of {copies}"
    )


def updates_divide_the_step(settings: Settings) -> Iterator[Broken]:
    """Cut a step's rows into whole updates: Megatron counts an update's micro-batches."""
    gpus = len(devices_of(settings, "actor_devices"))
    copies = copies_of(settings, "actor", gpus)
    if is_agentic(settings) or trainer_of(settings) != MEGATRON or not copies:
        return
    own = of_role(settings, "actor")
    if own.on("by_tokens"):
        return
    rows = settings.whole("prompts") * settings.whole("samples")
    update = update_rows(own, copies)
    problem = f"x per_device_train_batch_size x {copies} copies makes updates of {update} rows, which do not divide {rows}"
    yield from unless(
        divides(update, rows), own.key_of("accumulation"), problem, f"a divisor of {rows} in all"
    )


def runs_ahead_are_whole_batches(settings: Settings) -> Iterator[Broken]:
    """Begin whole batches ahead, handed out one by one, and in episodes only with GPUs apart."""
    ahead = settings.number("ahead")
    if ahead <= 0:
        return
    least = is_agentic(settings) or ahead >= 1
    yield from unless(least, "ahead", "begins less than a batch ahead", "0, or 1 and more")
    yield from unless(settings.whole("opt_level") == 1, "opt_level", "hands out whole batches", "1")
    apart = placement_of(settings, tuple(named_models(settings))).apart
    holds = apart or not is_agentic(settings)
    yield from unless(
        holds, "ahead", "wants engines on GPUs that do not train", "0, or other devices"
    )


def episodes_fill_their_groups(settings: Settings) -> Iterator[Broken]:
    """Collect whole groups of episodes."""
    if not is_agentic(settings):
        return
    size = settings.whole("samples")
    problem = f"has no whole groups of {size}"
    yield from unless(
        divides(size, settings.whole("prompts")), "prompts", problem, f"a multiple of {size}"
    )


def evaluated_episodes_fill_their_environments(settings: Settings) -> Iterator[Broken]:
    """Evaluate as many episodes as there are environments, or a multiple.

    Up to 0.1.3, whose groups have another key, each environment's episodes are rounded up.
    """
    most = settings.whole("evaluation_prompts") if is_agentic(settings) else 0
    groups = settings.flat.get(settings.key_of("evaluation_groups"))
    if most <= 0 or (groups is not None and groups.older):
        return
    size = settings.whole("evaluation_group")
    there = settings.whole("evaluation_groups") * size
    problem = f"is no multiple of the {there} environments in groups of {size}"
    holds = divides(size, most) and divides(there, most)
    yield from unless(holds, "evaluation_prompts", problem, f"a multiple of {there}")


def environments_are_shared_out(settings: Settings) -> Iterator[Broken]:
    """Share groups of environments out to tags, all of them."""
    parts = settings.value("env_parts")
    if not is_agentic(settings) or not isinstance(parts, list):
        return
    whole = [each for each in parts if isinstance(each, int)]
    groups = settings.whole("env_groups")
    problem = f"is not the {sum(whole)} groups that tags have together"
    holds = len(whole) != len(parts) or sum(whole) == groups
    yield from unless(holds, "env_groups", problem, f"{sum(whole)}")


def only_megatron_packs(settings: Settings) -> Iterator[Broken]:
    """Pack rows where Megatron trains."""
    key = "actor_train.use_sequence_packing"
    holds = trainer_of(settings) == MEGATRON or settings.given(key) is not True
    yield from unless(holds, key, "is of Megatron alone", "false, or use_dynamic_batching_in_train")


def batches_by_tokens_have_a_budget(settings: Settings) -> Iterator[Broken]:
    """Say how many tokens a micro-batch has that is filled by them."""
    own = of_role(settings, "actor")
    for switch, name in (("by_tokens", "tokens_train"), ("by_tokens_infer", "tokens_infer")):
        holds = not own.on(switch) or bool(own.optional_whole(name))
        yield from unless(holds, own.key_of(name), "is missing beside dynamic batching", "tokens")


def engines_take_adapters_that_are_trained(settings: Settings) -> Iterator[Broken]:
    """Name an adapter to the engines as to the trainer."""
    trained, taken = (
        settings.value(each) is not None for each in ("lora_target", "engine_adapter")
    )
    yield from unless(
        trained == taken, "engine_adapter", "is not as actor_train has it", "the same"
    )


def teachers_take_the_references_place(settings: Settings) -> Iterator[Broken]:
    """Configure a teacher, and no reference beside it, where its penalty is added to rewards."""
    if not settings.on("distils"):
        return
    taught = next(settings.has("teacher.*"), None) is not None
    yield from unless(taught, "distils", "is on, and no teacher is configured", "a teacher")
    reference = not devices_of(settings, "reference_devices")
    yield from unless(reference, "reference_devices", "is beside a teacher's", "none")


def tensor_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give each rank of Megatron's tensor parallelism, or of Ulysses, equally many heads."""
    trainer = trainer_of(settings)
    if trainer in {MEGATRON, FSDP}:
        name = "tp" if trainer == MEGATRON else "cp"
        yield from ranks_divide_the_heads(of_role(settings, "actor"), name)


def engines_take_whole_sequences(settings: Settings) -> Iterator[Broken]:
    """Let an engine take the longest sequence; it cuts what is longer."""
    limit, total = settings.optional_whole("max_model_len"), settings.optional_whole("max_total")
    total = total or settings.whole("max_prompt") + (settings.optional_whole("max_response") or 0)
    if limit is not None and limit < total:
        problem = f"is below the {total:,} tokens of the longest sequence"
        yield Broken(
            key="max_model_len", problem=problem, allowed=f"{total:,} or more", stops=False
        )


RULES: Final = (
    Rule(sequences_have_a_length, BASE),
    Rule(sizes_divide_the_gpus, "utils/config_utils.py"),
    Rule(engines_divide_their_devices, WORKER),
    Rule(prompts_reach_every_copy, BASE),
    Rule(updates_divide_the_step, STRATEGY),
    Rule(runs_ahead_are_whole_batches, RLVR),
    Rule(episodes_fill_their_groups, EPISODES),
    Rule(evaluated_episodes_fill_their_environments, EPISODES),
    Rule(environments_are_shared_out, EPISODES),
    Rule(only_megatron_packs, WORKER),
    Rule(batches_by_tokens_have_a_budget, WORKER),
    Rule(engines_take_adapters_that_are_trained, "distributed/strategy/vllm_strategy.py"),
    Rule(teachers_take_the_references_place, BASE),
    Rule(tensor_ranks_divide_the_heads, "megatron.core"),
    Rule(engines_take_whole_sequences, "vllm/config"),
)
