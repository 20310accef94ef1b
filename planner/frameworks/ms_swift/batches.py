"""ms-swift's batches, which count completions: what is generated at a time, what an update learns from, on how many GPUs."""

import re
from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import USUAL_NODE
from rlplan.planner.configs.sizes import divided
from rlplan.planner.configs.trl_family import (
    Batches,
    Processes,
    batches_between,
)

MEGATRON: Final = "megatron"
# What only Megatron's arguments have, where a bare file names no start.
OF_MEGATRON: Final = (
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "train.gpus",
    "colocate_groups",
)
ROLE_GPUS: Final = "train.gpus"


def is_megatron(settings: Settings) -> bool:
    """Tell whether Megatron trains: by its start, or by a bare file's keys."""
    if settings.start:
        return MEGATRON in settings.start
    return any(key in settings.flat for key in OF_MEGATRON)


def uses_vllm(settings: Settings) -> bool:
    """Tell whether vLLM generates: always beside Megatron, else where it is asked for."""
    given = settings.value("use_vllm")
    return is_megatron(settings) if given is None else settings.on("use_vllm")


def is_of_ray(settings: Settings) -> bool:
    """Tell whether Ray starts the processes, whose numbers stand in sections by role."""
    return settings.on("of_ray") or ROLE_GPUS in settings.flat


def shares_gpus(settings: Settings) -> bool:
    """Tell whether engines generate on the GPUs that train."""
    if not uses_vllm(settings):
        return True
    if is_of_ray(settings):
        groups = settings.value("shares")
        together = groups if isinstance(groups, list) else []
        return any({"train", "rollout"} <= set(map(str, _listed_in(each))) for each in together)
    return settings.word("server_mode") == "colocate"


def _listed_in(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def processes_of(settings: Settings) -> Processes:
    """Return the processes that train.

    Raises:
        FileError: A number of them is none.
    """
    if is_of_ray(settings):
        count = settings.optional_whole("train_gpus")
        if count is None or count < 1:
            raise settings.refused("train_gpus", "leaves no GPU to training", "at least 1")
        nodes = max(1, _said(settings, "machines") or 1)
        return Processes(count=count, nodes=nodes, engine_gpus=_engine_gpus(settings), said=True)
    nodes = max(1, _said(settings, "machines") or 1)
    each = _said(settings, "node_processes")
    said = each is not None
    if each is None and settings.value("node_processes") is not None:
        each = _visible(settings) or USUAL_NODE  # `gpu` and `auto` of torchrun
    count = nodes * (1 if each is None else each)
    if count < 1:
        raise settings.refused("node_processes", "leaves no GPU to training", "at least 1")
    return Processes(count=count, nodes=nodes, engine_gpus=_engine_gpus(settings), said=said)


def _said(settings: Settings, name: str) -> int | None:
    """Return a setting that is a number, as a variable's text too; None where it is none."""
    value = settings.value(name)
    text = "" if value is None or isinstance(value, bool) else str(value)
    return int(text) if text.isdecimal() else None


def _visible(settings: Settings) -> int | None:
    """Return how many GPUs are visible; None where nothing says it."""
    value = settings.value("gpu_ids")
    if isinstance(value, list):
        return len(value) or None
    text = str(value if value is not None else "")
    return text.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", text) else None


def _engine_gpus(settings: Settings) -> int:
    """Return the GPUs that engines have of their own: Ray's by role, else of every server that is named."""
    if shares_gpus(settings):
        return 0
    if is_of_ray(settings):
        gpus = settings.optional_whole("rollout_gpus")
        if gpus is None or gpus < 1:
            raise settings.refused("rollout_gpus", "leaves no GPU to generation", "at least 1")
        return gpus
    return _servers(settings) * settings.whole("server_tp") * settings.whole("server_dp")


def _servers(settings: Settings) -> int:
    """Return how many servers are named; where they are, which may be known only where the training runs, is of no account."""
    settings.is_given("servers")
    named = settings.given(settings.key_of("servers"))
    return len(named) if isinstance(named, list) and named else 1


def batches_of(settings: Settings, count: int) -> Batches:
    """Return what is generated and learnt from until both begin anew.

    Args:
        count: Processes that train.

    Raises:
        FileError: A batch is empty, or sizes do not divide the processes.
    """
    return _of_megatron(settings, count) if is_megatron(settings) else _of_trainer(settings, count)


def _of_megatron(settings: Settings, count: int) -> Batches:
    """Return batches of Megatron: whole ones of `global_batch_size`, so many as are generated together."""
    own, size = settings.of(MEGATRON, "actor"), settings.whole("global_batch")
    micro = own.whole("micro_batch")
    if size < 1 or micro < 1:
        raise settings.refused("global_batch", "is no batch", "at least 1")
    steps = _steps(settings, size, 1)
    epochs = max(1, settings.whole("epochs"))
    return Batches(
        completions=size * steps,
        parts=1,
        epochs=epochs,
        updates=steps,
        divides=True,
        micro_batch=micro,
        rank_part=max(1, size * steps // count),
    )


def _of_trainer(settings: Settings, count: int) -> Batches:
    """Return batches of transformers' Trainer.

    A part is generated for every `steps_per_generation` x `num_iterations` micro-batches, so many times as ranks share a
    sequence; an optimizer step is made after every `gradient_accumulation_steps` of them, as many times as well
    (rlhf_trainers/grpo_trainer.py multiplies it).
    """
    size, accumulation = settings.whole("device_batch"), settings.whole("accumulation")
    if size < 1:
        raise settings.refused("device_batch", "is no batch", "at least 1")
    if accumulation < 1:
        raise settings.refused("accumulation", "is no number of micro-batches", "at least 1")
    own = settings.of("ddp", "actor")
    ranks = own.whole("cp")
    copies = divided(settings, own.key_of("cp"), count, ranks)
    epochs = max(1, settings.whole("epochs"))
    steps = _steps(settings, size * count, accumulation) * ranks
    accumulation *= ranks
    return batches_between(
        generated=steps * size * copies,
        steps=steps,
        epochs=epochs,
        accumulation=accumulation,
        micro_batch=size,
        rank_part=size * steps // ranks,
    )


def _steps(settings: Settings, size: int, usual: int) -> int:
    """Return how many batches of a size are generated together."""
    steps, batch = (
        settings.optional_whole(each) for each in ("generation_steps", "generation_batch")
    )
    if steps is None and batch is not None:
        return max(1, batch // size)
    return usual if steps is None else max(1, steps)


def assumes_servers(settings: Settings, processes: Processes) -> bool:
    """Tell whether nothing at hand says how many GPUs vLLM's servers have, as where other scripts start them."""
    given = settings.is_given("server_tp") or settings.is_given("server_dp")
    return processes.engine_gpus > 0 and not is_of_ray(settings) and not given


def processes_guesses(settings: Settings, processes: Processes) -> Iterator[str]:
    """Yield what was assumed of the GPUs."""
    if not processes.said:
        count = processes.count
        yield (
            f"{count} process{'es train' if count > 1 else ' trains'}, as ms-swift starts where nothing says how many: say "
            "NPROC_PER_NODE in front of the command, or --NPROC_PER_NODE"
        )
    if assumes_servers(settings, processes):
        yield (
            "each of vLLM's servers has one GPU, as `swift rollout` takes: say --rollout.vllm_tensor_parallel_size and "
            "--rollout.vllm_data_parallel_size"
        )
