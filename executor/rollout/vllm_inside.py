"""What is done inside vLLM for its engine here: how it starts in a pool's rank, and takes weights.

Import it after the environment is set that vLLM reads (`executor.rollout.engines.vllm`).
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from vllm import ModelRegistry
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from executor.model.building import causal_lm_class, family_config
from rlplan.model import ModelArchitecture


class PoolRankExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]  # Any where vLLM is missing
    """Run vLLM on a rank of a pool whose ranks have met already, without shared memory of its own.

    The CPU build's segments of shared memory have names that other runs share, and outlive workers
    that are ended. It does without them where ranks disagree on the name, which ends like this
    address; nothing is reached under it.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        return f"tcp://pool:{dist.get_rank()}", dist.get_rank(), 0


def register_family(architecture: ModelArchitecture) -> None:
    """Hand vLLM the family's class.

    Else it looks at the class in a process of its own, which takes as long as starting the engine,
    and keeps what it saw in the home folder.
    """
    module = importlib.import_module(f"vllm.model_executor.models.{architecture.family}")
    name = causal_lm_class(architecture).__name__
    ModelRegistry.register_model(name, getattr(module, name))


def write_config(architecture: ModelArchitecture, longest_tokens: int, folder: str) -> None:
    """Write what vLLM reads of a model beside its weights."""
    config = family_config(architecture)
    config.architectures = [causal_lm_class(architecture).__name__]
    # Rotary positions know no end; vLLM would refuse longer sequences than were trained on.
    config.max_position_embeddings = max(architecture.max_positions, longest_tokens)
    config.save_pretrained(folder)


def drop_queue(_: Any) -> None:
    """Give back the shared memory and sockets through which ranks could send each other requests.

    Ranks that work through the same requests send none, and both outlive workers that are ended.
    """
    group = get_tp_group()
    queue, group.mq_broadcaster = group.mq_broadcaster, None
    for address in vars(queue.handle).values() if queue is not None else ():
        if isinstance(address, str) and address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def reload_weights(worker: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write weights into vLLM's model where they lie, packed as it packs them."""
    worker.model_runner.reload_weights(weights_iterator=weights)


def repack_head(worker: Any) -> None:
    """Pack a tied head again, of which vLLM sees that the embedding was loaded but not the head."""
    head = worker.get_model().lm_head
    head.quant_method.process_weights_after_loading(head)
