"""TRL's batches, which count completions: what is generated at a time, what an update learns from, on how many GPUs."""

import re
from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.trl_family import Batches, Processes, batches_between

# Processes of a node where nothing says how many: what accelerate's examples of TRL and open-r1 say.
USUAL_PROCESSES: Final = 8
# How many of them are tried, the usual ones first, until groups of completions fit in what is generated.
TRIED: Final = (8, 4, 2, 1, 6, 7, 3, 5)
UNSLOTH: Final = "unsloth.*"
# The first version with which Unsloth looks at whole optimizer steps (2026.4; with 0.24, 2025.11, at micro-batches).
OF_STEPS: Final = "0.25"
# Versions in which batches counted otherwise.
OF_PROMPTS: Final = ("0.14",)
EACH_ITS_OWN: Final = ("0.14", "0.15", "0.16")
WITHOUT_STEPS: Final = (*EACH_ITS_OWN, "0.17")


def mode_of(settings: Settings) -> str:
    """Return who generates: `transformers`, `colocate`, a `server`, or vLLM on a `device` of the trainer's node.

    Unsloth's models bring vLLM in their own process (unsloth/models/rl.py: `self.llm = model.vllm_engine`, with
    vllm_mode='colocate' as what its trainer has by itself, in whatever version of TRL).
    """
    if not settings.on("use_vllm"):
        return "transformers"
    brings = any(settings.has(UNSLOTH)) and not settings.is_given("server_mode")
    return "colocate" if brings else settings.word("server_mode")


def processes_of(settings: Settings) -> Processes:
    """Return the processes that train, as launchers or files of accelerate say; else of a usual node.

    Raises:
        FileError: A number of them is none.
    """
    nodes = max(1, settings.whole("machines"))
    server = _server_gpus(settings)
    count = settings.optional_whole("processes")
    if count is None:
        each = _whole(settings, "node_processes") or _listed(settings)
        count = each and each * nodes
    if count is not None and count < 1:
        raise settings.refused("processes", "leaves no GPU to training", "at least 1")
    said = count is not None
    if count is None:
        count = nodes * _usual_processes(settings, nodes, server)
    if count % nodes:
        problem = f"does not divide over {nodes} machines"
        raise settings.refused("processes", problem, f"a multiple of {nodes}")
    return Processes(count=count, nodes=nodes, engine_gpus=server, said=said)


def _server_gpus(settings: Settings) -> int:
    mode = mode_of(settings)
    if mode == "device":
        return 1
    return settings.whole("server_tp") * settings.whole("server_dp") if mode == "server" else 0


def _whole(settings: Settings, name: str) -> int | None:
    """Return a setting where it is a number; `gpu` and `auto` of torchrun say none."""
    value = settings.value(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _listed(settings: Settings) -> int | None:
    """Return how many GPUs are listed, as `0,1,2` or `localhost:0,1,2`; None where none are, or `all`."""
    value = settings.value("gpu_ids")
    if isinstance(value, list):
        return len(value) or None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1
    text = str(value or "").rpartition(":")[2]
    return text.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", text) else None


def _usual_processes(settings: Settings, nodes: int, server: int) -> int:
    """Return the processes of a node where nothing says how many, so that groups of completions fit if they can."""
    usual = USUAL_PROCESSES - server if server and nodes == 1 else USUAL_PROCESSES
    alone = settings.start.endswith(".py") or settings.start[:1].isupper()
    first: tuple[int, ...] = (usual,) if usual > 0 else ()
    tried = list(dict.fromkeys((*((1,) if alone and not server else first), *TRIED)))
    return next((each for each in tried if _fits(settings, each * nodes)), tried[0])


def _fits(settings: Settings, count: int) -> bool:
    return generated_of(settings, count) % max(1, settings.whole("samples")) == 0


def device_batch(settings: Settings, count: int) -> int:
    """Return the completions of a rank's micro-batch.

    Args:
        count: Processes.
    """
    batch = settings.whole("device_batch")
    if batch < 1:
        raise settings.refused("device_batch", "is no batch", "at least 1")
    samples = settings.whole("samples")
    if settings.sheet.version in OF_PROMPTS:
        return batch * samples
    return samples if raised_by_unsloth(settings, count) else batch


def raised_by_unsloth(settings: Settings, count: int) -> bool:
    """Tell whether Unsloth sets the micro-batch to a prompt's completions (models/rl.py: "We will change the batch size").

    It does where the micro-batch is no multiple of them; since it knows TRL 0.25 where what all ranks learn from in an
    optimizer step is none, and nothing says how much is generated.
    """
    if not any(settings.has(UNSLOTH)):
        return False
    batch, samples = settings.whole("device_batch"), max(1, settings.whole("samples"))
    order = settings.sheet.versions.index
    if order(settings.sheet.version) < order(OF_STEPS):
        return batch % samples != 0
    said = settings.is_given("generation_steps") or settings.is_given("generation_batch")
    return not said and batch * settings.whole("accumulation") * count % samples != 0


def steps_of_generation(settings: Settings, count: int) -> int:
    """Return how many micro-batches of each rank are generated together."""
    version = settings.sheet.version
    if version in EACH_ITS_OWN:
        return 1
    accumulation = settings.whole("accumulation")
    if version in WITHOUT_STEPS:
        return accumulation
    steps, batch = (
        settings.optional_whole(each) for each in ("generation_steps", "generation_batch")
    )
    if steps is None and batch is not None:
        return max(1, batch // (device_batch(settings, count) * count))
    return accumulation if steps is None else max(1, steps)


def generated_of(settings: Settings, count: int) -> int:
    """Return the completions that are generated together.

    Args:
        count: Processes.
    """
    return device_batch(settings, count) * count * steps_of_generation(settings, count)


def batches_of(settings: Settings, processes: Processes) -> Batches:
    """Return what is generated and learnt from until both begin anew.

    A part is generated for every `steps_per_generation` x `num_iterations` micro-batches, an optimizer step is made
    after every `gradient_accumulation_steps` of them. Up to 0.16 each micro-batch of an optimizer step is generated by
    itself, and all of them are learnt from in every pass.
    """
    epochs, accumulation = max(1, settings.whole("epochs")), settings.whole("accumulation")
    if accumulation < 1:
        raise settings.refused("accumulation", "is no number of micro-batches", "at least 1")
    steps = steps_of_generation(settings, processes.count)
    each_anew = settings.sheet.version in EACH_ITS_OWN
    return batches_between(
        generated=generated_of(settings, processes.count),
        steps=steps,
        epochs=epochs,
        accumulation=accumulation,
        micro_batch=device_batch(settings, processes.count),
        rank_part=device_batch(settings, processes.count) * steps,
        whole=accumulation * epochs if each_anew else None,
    )


def assumes_server(settings: Settings) -> bool:
    """Tell whether nothing at hand says how many GPUs vLLM's server has, as where another script starts it."""
    given = settings.is_given("server_tp") or settings.is_given("server_dp")
    return mode_of(settings) == "server" and not given


def processes_guesses(settings: Settings, processes: Processes) -> Iterator[str]:
    """Yield what was assumed of the GPUs."""
    if not processes.said:
        count = processes.count
        yield (
            f"{count} process{'es train' if count > 1 else ' trains'}, since nothing at hand says how many: say "
            "--num_processes, or --config_file with accelerate's"
        )
    if assumes_server(settings):
        yield (
            "vLLM's server has one GPU, as `trl vllm-serve` takes: say --vllm_serve.tensor_parallel_size and "
            "--vllm_serve.data_parallel_size"
        )
