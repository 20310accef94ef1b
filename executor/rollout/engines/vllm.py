"""vLLM inside a pool's workers, on GPUs and with its CPU build.

Every rank runs an engine of its own in its own process; the ranks of a replica work through the
same requests in the same order, each on its tensor-parallel part (vLLM's external launcher). So no
process is started, and nothing but a model's config, without weights, is written, to a folder that
is removed again.

The weights are copied in place, parameter by parameter, from the shard in the generate layout. On
GPUs the engine sleeps between uses: its own weights and its cache give their memory back.
"""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
from torch import Tensor
from vllm import ModelRegistry
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from rlplan.executor.model.building import causal_lm_class, model_config, published_name
from rlplan.fingerprint import memory_bytes
from rlplan.parts import cache_bytes_per_token

# Read by vLLM when it is imported: it stays in this process, asks no network and binds no cores.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

from rlplan.errors import InfeasibleError, PlanError
from rlplan.executor.data.batches import RESPONSE
from rlplan.executor.model.building import HEAD
from rlplan.executor.parallel.tensor_parallel import joined
from rlplan.executor.passes import infer
from rlplan.executor.rollout.engines import DEFAULT_ENGINE, EngineSetup
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences, without_responses
from rlplan.executor.weights.flat import Entry, FlatParameters
from rlplan.executor.weights.shard import ModelShard, SharedParameters
from rlplan.units import show_bytes

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# Pages of the CPU build's cache are counted in blocks of so many tokens (its own default).
CPU_BLOCK_TOKENS = 128


class VllmEngine:
    """Hold a vLLM engine that generates with the weights of a shard.

    Args:
        shard: This rank's part of the model in the generate layout, on one pipeline stage.
    """

    def __init__(self, shard: ModelShard, setup: EngineSetup) -> None:
        self._shard, self._setup = shard, setup
        self._architecture = setup.job.architecture("actor")
        self._sleeps = shard.device.type == "cuda"
        check_build(shard.device.type)
        self._llm = self._start(self._arguments())
        self.release()

    def _start(self, arguments: dict[str, Any]) -> Any:
        """Return vLLM with the model's layers and no weights yet."""
        config = model_config(self._setup.job, "actor")
        register_family(config)
        try:
            with TemporaryDirectory(prefix="rlplan-vllm-") as folder:
                write_config(config, _longest(self._setup), folder)
                llm = LLM(model=folder, **arguments)
        except ValueError as error:  # as vLLM raises for settings and memory that do not do
            raise PlanError(f"tasks.actor.generate: vLLM refuses to start: {error}") from error
        llm.collective_rpc(drop_queue)
        return llm

    def _arguments(self) -> dict[str, Any]:
        """Return the engine's settings: the plan's limits, and what reinforcement learning needs."""
        setup, shard = self._setup, self._shard
        arguments: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": DTYPES[shard.precision],
            "seed": setup.seed,
            "max_model_len": _longest(setup),
            "max_num_seqs": setup.layout.max_running,
            "gpu_memory_utilization": setup.layout.memory_fraction,
            "tensor_parallel_size": shard.mesh.tp_size,
            "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled: at the temperature
            "disable_log_stats": True,
            "enable_sleep_mode": self._sleeps,
        }
        if dist.is_initialized():
            # The pool's ranks have met already; Ray shows each of them its own device as the first.
            os.environ |= {
                "RANK": str(dist.get_rank()),
                "WORLD_SIZE": str(dist.get_world_size()),
                "LOCAL_RANK": "0",
            }
            arguments["distributed_executor_backend"] = (
                "external_launcher" if self._sleeps else PoolRankExecutor
            )
        if shard.device.type == "cpu":
            os.environ.pop(
                "VLLM_CPU_KVCACHE_SPACE", None
            )  # vLLM would put it before the plan's share
            arguments["enforce_eager"] = True
            arguments["kv_cache_memory_bytes"] = self._cpu_cache_bytes()
        return arguments

    def _cpu_cache_bytes(self) -> int:
        """Return the cache that the running sequences can fill, at most this rank's share of memory.

        A CPU's memory is everybody's: a device is one core, and its memory an equal part of it.
        """
        layout, shard = self._setup.layout, self._shard
        value_bytes = 4 if shard.precision == "fp32" else 2
        token_bytes = cache_bytes_per_token(self._architecture, value_bytes) // shard.mesh.tp_size
        block_bytes = CPU_BLOCK_TOKENS * token_bytes
        blocks = -(-_longest(self._setup) // CPU_BLOCK_TOKENS)  # of one sequence; one is vLLM's own
        wanted, least = ((count * blocks + 1) * block_bytes for count in (layout.max_running, 1))
        share = int(layout.memory_fraction * memory_bytes() / layout.gpus)
        if share - shard.flat.weight_bytes < least:
            raise InfeasibleError(
                f"tasks.actor.generate.memory_fraction {layout.memory_fraction} is"
                f" {show_bytes(share)} for each of {layout.gpus} devices of this machine:"
                f" {show_bytes(shard.flat.weight_bytes)} of weights and {show_bytes(least)} for one"
                " sequence want more; raise it, or plan with fewer devices"
            )
        return min(wanted, share - shard.flat.weight_bytes)

    def load_weights(self) -> None:
        """Copy the shard's weights into the engine and forget what was cached under older ones."""
        if self._sleeps:
            self._llm.wake_up(tags=["weights"])
        with torch.no_grad():
            self._llm.collective_rpc(reload_weights, args=(self._named_weights(),))
            if self._architecture.tied_embeddings:
                self._llm.collective_rpc(repack_head)
        if self._sleeps:
            self._llm.wake_up(tags=["kv_cache"])
        forgotten = self._llm.reset_prefix_cache()
        assert forgotten, "no request is running between generations"

    def release(self) -> None:
        """Give the memory of the weights and the cache back, on GPUs."""
        if self._sleeps:
            self._llm.sleep(level=2)

    def _named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter whole, under the name that published models use."""
        flat = self._shard.flat
        assert isinstance(flat, FlatParameters | SharedParameters), (
            "what generates is not sharded further"
        )
        for entry in flat.entries:
            if entry.name == HEAD and self._architecture.tied_embeddings:
                continue
            yield published_name(entry.name), self._gathered_tensor(entry, flat.view_of(entry))

    def _gathered_tensor(self, entry: Entry, part: Tensor) -> Tensor:
        mesh = self._shard.mesh
        if mesh.tp_size == 1 or entry.dimension is None:
            return part
        return joined(part, entry.dimension, entry.whole, mesh.group("tp"))

    def generate(
        self,
        prompts: Tensor,
        present: Tensor,
        lengths: Tensor,
        rows: Tensor,
        width: int,
        settings: GenerateSettings,
    ) -> Sequences:
        """Return the sequences of a replica's rows; arguments as `torch_static` has them."""
        prompt_width = prompts.shape[1]
        wanted = [index for index, length in enumerate(lengths.tolist()) if length > 0]
        requests = [{"prompt_token_ids": prompts[i][present[i]].tolist()} for i in wanted]
        sampling = [_sampling(int(lengths[i]), int(rows[i]), settings) for i in wanted]
        results = self._llm.generate(requests, sampling, use_tqdm=False) if wanted else []
        host = without_responses(prompts.cpu(), present.cpu(), width)
        for index, result in zip(wanted, results, strict=True):
            sampled, log_probs = _response(result)
            columns = slice(prompt_width, prompt_width + len(sampled))
            host.tokens[index, columns] = torch.tensor(sampled)
            host.parts[index, columns] = RESPONSE
            host.log_probs[index, columns] = torch.tensor(log_probs)
        made = Sequences(
            *(column.to(prompts.device) for column in (host.tokens, host.parts, host.log_probs))
        )
        return self._at_temperature(made, settings) if settings.greedy else made

    def _at_temperature(self, made: Sequences, settings: GenerateSettings) -> Sequences:
        """Return greedy sequences with log-probabilities at the temperature; vLLM's are at 1."""
        if settings.temperature == 1:
            return made
        inferred = infer(
            self._shard,
            made.tokens,
            made.parts,
            "log_probs",
            micro_batch=settings.max_running,
            temperature=settings.temperature,
        )
        assert inferred is not None, "one pipeline stage is the last one"
        log_probs = torch.where(made.parts == RESPONSE, inferred, 0.0)
        return Sequences(made.tokens, made.parts, log_probs)


def start(shard: ModelShard, setup: EngineSetup) -> VllmEngine:
    """Return vLLM started on a rank's device; all ranks of the pool start theirs together."""
    return VllmEngine(shard, setup)


def check_build(device_type: str) -> None:
    """Refuse a build of vLLM for other devices than the pool's.

    Raises:
        PlanError: Names the build and what to install.
    """
    built_for = current_platform.device_type
    if built_for != device_type:
        wanted = "a build of vLLM for CPUs" if device_type == "cpu" else "rlplan[vllm]"
        raise PlanError(
            f"tasks.actor.generate.engine is vllm on {device_type}, but the vLLM installed here runs"
            f" on {built_for or 'no device of this machine'}: install {wanted}, or plan with"
            f" `engines: {{generate: {DEFAULT_ENGINE}}}` in the job"
        )


def _longest(setup: EngineSetup) -> int:
    return setup.job.workload.longest_sequence_tokens


def _sampling(length: int, row: int, settings: GenerateSettings) -> Any:
    """Return how a row is sampled: by random numbers of its own, up to its length or its end token."""
    seed = np.random.SeedSequence([settings.seed, settings.iteration, row])
    return SamplingParams(
        temperature=0.0 if settings.greedy else settings.temperature,
        seed=int(seed.generate_state(1)[0]),
        max_tokens=length,
        stop_token_ids=list(settings.end_ids),
        ignore_eos=True,  # the config's own: a job may have responses of full length
        logprobs=0,
        detokenize=False,
    )


def _response(result: Any) -> tuple[list[int], list[float]]:
    """Return a response's tokens and their log-probabilities."""
    (made,) = result.outputs
    tokens = [int(token) for token in made.token_ids]
    log_probs = [
        float(step[token].logprob) for token, step in zip(tokens, made.logprobs, strict=True)
    ]
    return tokens, log_probs


class PoolRankExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]  # Any where vLLM is missing
    """Run vLLM on a rank of a pool whose ranks have met already, without shared memory of its own.

    The CPU build's segments of shared memory have names that other runs share, and outlive workers
    that are ended. It does without them where ranks disagree on the name, which ends like this
    address; nothing is reached under it.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        return f"tcp://pool:{dist.get_rank()}", dist.get_rank(), 0


def register_family(config: Any) -> None:
    """Register the family's class with vLLM.

    Otherwise vLLM inspects the class in a separate process, which takes as long as starting the engine, and
    caches the result in the home folder.
    """
    module = importlib.import_module(f"vllm.model_executor.models.{config.model_type}")
    name = causal_lm_class(config).__name__
    ModelRegistry.register_model(name, getattr(module, name))


def write_config(config: Any, longest_tokens: int, folder: str) -> None:
    """Write the configuration that vLLM reads in addition to the weights."""
    config.architectures = [causal_lm_class(config).__name__]
    # Rotary positions know no end; vLLM would refuse longer sequences than were trained on.
    config.max_position_embeddings = max(config.max_position_embeddings, longest_tokens)
    config.save_pretrained(folder)


def drop_queue(_: Any) -> None:
    """Free the shared memory and sockets through which ranks could send requests to each other.

    Here all ranks get the same requests and send none; both would outlive workers that are killed.
    """
    group = get_tp_group()
    queue, group.mq_broadcaster = group.mq_broadcaster, None
    for address in vars(queue.handle).values() if queue is not None else ():
        if isinstance(address, str) and address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def reload_weights(worker: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write weights in place into vLLM's model, in its packed format."""
    worker.model_runner.reload_weights(weights_iterator=weights)


def repack_head(worker: Any) -> None:
    """Repack a tied head after loading: vLLM notices new weights of the embedding, but not of the head."""
    head = worker.get_model().lm_head
    head.quant_method.process_weights_after_loading(head)
