"""What ms-swift finds only when a run starts, or a step of it: modelscope/ms-swift@3602360a5, below `swift/`."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, divides, ranks_divide_the_heads, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.ms_swift.batches import (
    MEGATRON,
    is_megatron,
    is_of_ray,
    processes_of,
    shares_gpus,
    uses_vllm,
)
from rlplan.planner.frameworks.ms_swift.reading import compares, engine_number, is_tuned, packs

ARGUMENTS: Final = "arguments/rlhf_args.py"
MIXIN: Final = "rlhf_trainers/args_mixin.py"
ROLLOUT: Final = "rlhf_trainers/rollout_mixin.py"
OF_MEGATRON: Final = "megatron/arguments/megatron_args.py"
RAY: Final = "ray/megatron/driver_utils.py"
SOFT: Final = "soft_overlong"
WORDS: Final = ("real", "fipo")
LEAST_SAMPLES: Final = 2


def _batch(settings: Settings) -> int:
    """Return the completions of one batch: of all ranks' micro-batches, or of an update of Megatron's."""
    if is_megatron(settings):
        return settings.whole("global_batch")
    return settings.whole("device_batch") * processes_of(settings).count


def _generated(settings: Settings) -> int:
    """Return the completions that are generated together."""
    batch = settings.optional_whole("generation_batch")
    if batch is not None:
        return batch
    usual = 1 if is_megatron(settings) else settings.whole("accumulation")
    return _batch(settings) * (settings.optional_whole("generation_steps") or usual)


def generation_batches_are_whole(settings: Settings) -> Iterator[Broken]:
    """Generate whole batches of training at a time."""
    batch, steps = (
        settings.optional_whole("generation_batch"),
        settings.optional_whole("generation_steps"),
    )
    if batch is None:
        return
    size = _batch(settings)
    problem = f"is no multiple of the {size} completions of a batch"
    yield from unless(divides(size, batch), "generation_batch", problem, f"a multiple of {size}")
    same = steps is None or batch == steps * size
    problem = f"is not steps_per_generation {steps} x {size}"
    yield from unless(same, "generation_batch", problem, "one of the two alone")


def groups_fill_what_is_generated(settings: Settings) -> Iterator[Broken]:
    """Generate whole groups of a prompt's completions at a time."""
    samples, generated = settings.whole("samples"), _generated(settings)
    problem = f"does not divide the {generated} completions that are generated together"
    yield from unless(divides(samples, generated), "samples", problem, f"a divisor of {generated}")


def groups_have_samples(settings: Settings) -> Iterator[Broken]:
    """Compare two completions of a prompt at least, unless a teacher judges them."""
    holds = settings.whole("samples") >= LEAST_SAMPLES or bool(settings.value("teacher"))
    yield from unless(
        holds or is_megatron(settings), "samples", "leaves nothing to compare", "2 or more"
    )


def evaluation_has_whole_groups(settings: Settings) -> Iterator[Broken]:
    """Evaluate whole groups at a time, where there is something to evaluate on."""
    held_out = settings.given("val_dataset") or settings.given("split_dataset_ratio")
    if (
        not held_out
        or is_megatron(settings)
        or str(settings.given("eval_strategy")) in {"None", "no", "False"}
    ):
        return
    samples = settings.optional_whole("evaluation_samples") or settings.whole("samples")
    size = settings.whole("evaluation_batch") * processes_of(settings).count
    problem = f"x the processes makes {size} completions, no whole groups of {samples}"
    if not divides(samples, size):
        yield Broken(
            key="evaluation_batch",
            problem=problem,
            allowed=f"a multiple of {samples} in all",
            stops=False,
        )


def a_mode_is_named_with_vllm(settings: Settings) -> Iterator[Broken]:
    """Say how vLLM runs where transformers' Trainer uses it, and only there."""
    if is_megatron(settings):
        return
    given, on = settings.is_given("server_mode"), uses_vllm(settings)
    yield from unless(
        given or not on, "server_mode", "is missing beside use_vllm", "colocate, server"
    )
    yield from unless(
        on or not given, "server_mode", "is for vLLM, which use_vllm leaves out", "use_vllm true"
    )


def megatron_generates_by_vllm(settings: Settings) -> Iterator[Broken]:
    """Leave vLLM on where Megatron trains."""
    holds = not is_megatron(settings) or is_of_ray(settings) or uses_vllm(settings)
    yield from unless(holds, "use_vllm", "is off, and Megatron's GRPO needs it", "true")


def servers_are_named(settings: Settings) -> Iterator[Broken]:
    """Name the servers that generate."""
    server = uses_vllm(settings) and not shares_gpus(settings) and not is_of_ray(settings)
    problem = "is missing, and vllm_mode is server"
    yield from unless(
        not server or settings.is_given("servers"), "servers", problem, "host of `swift rollout`"
    )


def engines_divide_the_processes(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs that train, or those of engines, out to whole engines."""
    if not uses_vllm(settings):
        return
    processes, name = processes_of(settings), engine_number(settings, "rollout_tp")
    gpus, tp = processes.engine_gpus or processes.count, settings.whole(name)
    yield from unless(
        divides(tp, gpus), name, f"does not divide {gpus} GPUs", f"divisors of {gpus}"
    )


def asynchronous_runs_have_a_server(settings: Settings) -> Iterator[Broken]:
    """Generate beside training only on a server, in one turn, and not with Megatron."""
    if not settings.on("runs_ahead"):
        return
    holds = not shares_gpus(settings) and not is_megatron(settings)
    yield from unless(holds, "runs_ahead", "wants a server, and transformers' Trainer", "false")
    alone = not settings.is_given("scheduler")
    yield from unless(alone, "scheduler", "is not for asynchronous generation", "none")


def adapters_have_no_reference(settings: Settings) -> Iterator[Broken]:
    """Compare adapters with the model below them, which has no name of its own."""
    given = settings.flat.get("ref_model") is not None
    holds = not given or not is_tuned(settings) or not compares(settings)
    yield from unless(holds, "reference_model", "is not for adapters", "none")


def long_responses_are_punished_within_a_length(settings: Settings) -> Iterator[Broken]:
    """Say over how many tokens the reward of long responses falls."""
    named = settings.given("reward_funcs")
    listed = named if isinstance(named, list) else [named]
    holds = SOFT not in listed or settings.optional_whole("soft_length") is not None
    yield from unless(holds, "soft_length", f"is missing, and {SOFT} needs it", "tokens")


def prompts_are_cut_or_dropped(settings: Settings) -> Iterator[Broken]:
    """Cut prompts that are too long from the left, or drop them."""
    word = settings.value("truncation")
    yield from unless(
        word in {None, "left", "delete"}, "truncation", "is not for GRPO", "left, delete"
    )


def ligers_loss_has_what_is_asked(settings: Settings) -> Iterator[Broken]:
    """Ask of Liger's loss only what it has."""
    if not settings.on("liger_kernel") or is_megatron(settings):
        return
    lacks = (
        ("two_sided_clip", settings.value("two_sided_clip") is not None),
        ("packs", packs(settings)),
        ("entropy_share", settings.number("entropy_share") < 1),
        ("logs_entropy", settings.on("logs_entropy")),
        ("masks_off_policy", settings.value("masks_off_policy") is not None),
        ("estimator", settings.word("estimator") != "grpo"),
        ("teacher", bool(settings.value("teacher"))),
    )
    for name, asked in lacks:
        yield from unless(not asked, name, "is not in Liger's loss", "use_liger_kernel false")
    ranks = settings.of("ddp", "actor").whole("cp")
    yield from unless(ranks == 1, "sequence_parallel_size", "is not in Liger's loss", "1")


def teachers_weigh_tokens(settings: Settings) -> Iterator[Broken]:
    """Learn from a teacher by losses that weigh tokens apart."""
    if not settings.value("teacher"):
        return
    word = settings.given(settings.key_of("policy_loss"))
    yield from unless(
        word not in WORDS, "policy_loss", "weighs whole sequences", "grpo, dapo, cispo, sapo"
    )
    masks = settings.value("masks_off_policy") is not None
    yield from unless(not masks, "masks_off_policy", "weighs whole sequences", "none")


def every_reward_has_a_weight(settings: Settings) -> Iterator[Broken]:
    """Weigh each reward, the models' among them."""
    weights = settings.value("reward_scales")
    functions = settings.value("reward_functions")
    models = settings.value("reward_model")
    if not isinstance(weights, list):
        return
    listed = [each if isinstance(each, list) else [each] for each in (functions, models) if each]
    rewards = sum(map(len, listed))
    problem = f"are {len(weights)} weights for {rewards} rewards"
    yield from unless(len(weights) == rewards, "reward_scales", problem, f"{rewards} weights")


def megatron_learns_once(settings: Settings) -> Iterator[Broken]:
    """Learn once from what is generated, with a reference that stays, where Megatron trains."""
    if not is_megatron(settings):
        return
    yield from unless(settings.whole("epochs") == 1, "epochs", "is not for Megatron", "1")
    yield from unless(
        not settings.on("syncs_reference"), "syncs_reference", "is not for Megatron", "false"
    )


def _copies(settings: Settings) -> int:
    """Return the copies of Megatron's model; 0 where its sizes do not divide the GPUs."""
    own, gpus = settings.of(MEGATRON, "actor"), processes_of(settings).count
    copy = own.whole("tp") * own.whole("pp") * own.whole("cp")
    return gpus // copy if divides(copy, gpus) else 0


def sizes_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Lay the model out over all GPUs."""
    gpus = processes_of(settings).count
    if not is_megatron(settings):
        own = settings.of("ddp", "actor")
        problem = f"does not divide {gpus} processes"
        yield from unless(divides(own.whole("cp"), gpus), own.key_of("cp"), problem, "a divisor")
        return
    own = settings.of(MEGATRON, "actor")
    problem = f"with the other sizes does not divide {gpus} GPUs"
    yield from unless(_copies(settings) > 0, own.key_of("tp"), problem, "sizes whose product does")


def updates_reach_every_copy(settings: Settings) -> Iterator[Broken]:
    """Give every copy of the model whole micro-batches of each update."""
    copies = _copies(settings) if is_megatron(settings) else 0
    if not copies:
        return
    micro, size = (
        settings.of(MEGATRON, "actor").whole("micro_batch"),
        settings.whole("global_batch"),
    )
    problem = f"is no multiple of micro_batch_size {micro} x {copies} copies"
    yield from unless(
        divides(micro * copies, size), "global_batch", problem, f"a multiple of {micro * copies}"
    )


def prompts_reach_every_copy(settings: Settings) -> Iterator[Broken]:
    """Give every copy of the model whole micro-batches of the prompts that are generated for."""
    copies, samples = (_copies(settings) if is_megatron(settings) else 0), settings.whole("samples")
    if not copies or samples < 1:
        return
    micro, prompts = (
        settings.of(MEGATRON, "actor").whole("micro_batch"),
        _generated(settings) // samples,
    )
    problem = f"generates for {prompts} prompts, no multiple of {copies} copies x micro_batch_size {micro}"
    name = "generation_steps" if settings.is_given("generation_steps") else "global_batch"
    yield from unless(
        divides(copies * micro, prompts), name, problem, f"a multiple of {copies * micro} prompts"
    )


def real_has_whole_groups(settings: Settings) -> Iterator[Broken]:
    """Have whole groups in each micro-batch of REAL's loss."""
    if not is_megatron(settings) or settings.given(settings.key_of("policy_loss")) != "real":
        return
    own, samples = settings.of(MEGATRON, "actor"), settings.whole("samples")
    problem = f"has no whole groups of {samples}, which loss_type=real compares"
    holds = divides(samples, own.whole("micro_batch"))
    yield from unless(holds, own.key_of("micro_batch"), problem, f"a multiple of {samples}")


def stages_are_not_interleaved(settings: Settings) -> Iterator[Broken]:
    """Give each stage one run of layers where a reference is compared with."""
    if not is_megatron(settings) or not compares(settings):
        return
    own = settings.of(MEGATRON, "actor")
    yield from unless(own.whole("chunks") == 1, own.key_of("chunks"), "is not for GRPO", "none")


def tensor_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give each rank of Megatron's tensor parallelism equally many heads."""
    if is_megatron(settings):
        yield from ranks_divide_the_heads(settings.of(MEGATRON, "actor"), "tp")


def shared_gpus_are_as_many(settings: Settings) -> Iterator[Broken]:
    """Give roles of Ray that share GPUs the same number of them."""
    if not is_of_ray(settings) or not shares_gpus(settings) or not uses_vllm(settings):
        return
    train, rollout = settings.optional_whole("train_gpus"), settings.optional_whole("rollout_gpus")
    problem = f"shares the trainer's {train}"
    yield from unless(train == rollout, "rollout_gpus", problem, f"{train}")


RULES: Final = (
    Rule(generation_batches_are_whole, MIXIN),
    Rule(groups_fill_what_is_generated, MIXIN),
    Rule(groups_have_samples, ARGUMENTS),
    Rule(evaluation_has_whole_groups, MIXIN),
    Rule(a_mode_is_named_with_vllm, ARGUMENTS),
    Rule(megatron_generates_by_vllm, OF_MEGATRON),
    Rule(servers_are_named, ARGUMENTS),
    Rule(engines_divide_the_processes, ROLLOUT),
    Rule(asynchronous_runs_have_a_server, ARGUMENTS),
    Rule(adapters_have_no_reference, ARGUMENTS),
    Rule(long_responses_are_punished_within_a_length, ARGUMENTS),
    Rule(prompts_are_cut_or_dropped, ARGUMENTS),
    Rule(ligers_loss_has_what_is_asked, ARGUMENTS),
    Rule(teachers_weigh_tokens, ARGUMENTS),
    Rule(every_reward_has_a_weight, "rlhf_trainers/grpo_trainer.py"),
    Rule(megatron_learns_once, OF_MEGATRON),
    Rule(sizes_divide_the_gpus, OF_MEGATRON),
    Rule(updates_reach_every_copy, OF_MEGATRON),
    Rule(prompts_reach_every_copy, OF_MEGATRON),
    Rule(real_has_whole_groups, OF_MEGATRON),
    Rule(stages_are_not_interleaved, "megatron/trainers/grpo_trainer.py"),
    Rule(tensor_ranks_divide_the_heads, "megatron.core"),
    Rule(shared_gpus_are_as_many, RAY),
)
