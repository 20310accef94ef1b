"""Forecast an engine that has a replica's GPUs for itself and a queue of equal requests."""

from dataclasses import dataclass
from functools import cache

from rlplan.estimate import Estimate
from rlplan.layout import ModelCut
from rlplan.models import PRECISIONS, WIDE, KeptBatch, ModelArchitecture, Precision
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import DeviceFacts
from rlplan.profiles.jobs.checks import MOST_SEQUENCES
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.pricing import setting_on
from rlplan.simulator.generation.generating import generated, limits_of
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.generation.replica import ReplicaLimits
from rlplan.simulator.memory.transition_memory import Room
from rlplan.simulator.model import (
    cached_sequence,
    largest_shard,
    layer_activation_bytes,
    logits_bytes,
)
from rlplan.simulator.placed import Site, shard_of

# Replicas of these tables lie inside one node; the network plays no part.
NO_NETWORK = 1e9


@cache
def device_facts(name: str) -> DeviceFacts:
    """Return the facts of a device without a profile, remembered among tables."""
    return DeviceFacts(load_device(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Describe a measured service: one replica, and requests that all wait from the start.

    Attributes:
        prompt_tokens: Of each request.
        response_tokens: Of each request.
        max_batched_tokens: Most tokens of a step; 0 is the engine's usual number.
    """

    device: str
    model: ModelArchitecture
    precision: Precision
    tp: int
    requests: int
    prompt_tokens: int
    response_tokens: int
    max_running: int
    max_batched_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine was ever measured on; playing it would not end.

        Raises:
            ValueError: Names the count.
        """
        for name in ("tp", "requests", "prompt_tokens", "response_tokens", "max_running"):
            count = getattr(self, name)
            if not 1 <= count <= MOST_SEQUENCES:
                raise ValueError(f"{name} of {count} is not between 1 and {MOST_SEQUENCES:,}")


def serve(service: Service, engine: EngineSheet) -> Estimate:
    """Return the seconds from the first request to the last response."""
    device = device_facts(service.device)
    per_node = max(service.tp, device.sheet.gpus_per_node)
    layout = TaskPlan(pool="", tp=service.tp, engine=engine.name)
    setting = setting_on(
        layout,
        engine,
        device,
        Site(service.device, service.tp, per_node, NO_NETWORK),
        service.precision,
    )
    steps = engine_steps(ReplicaSetting(service.model, engine, setting))
    count = service.requests
    share = ((service.prompt_tokens,) * count, (service.response_tokens,) * count)
    prefill, decode = generated(steps, limits(service, engine), share)
    return prefill + decode


def limits(service: Service, engine: EngineSheet) -> ReplicaLimits:
    """Return how the engine batches these requests."""
    tokens = engine.kv_block_tokens
    value_bytes = PRECISIONS[service.precision].weight_bytes
    longest = service.prompt_tokens + service.response_tokens
    token_bytes = cached_sequence(service.model, service.tp, 1, value_bytes, longest).token_bytes
    return limits_of(
        engine,
        service.max_running,
        int(cache_bytes(service, engine) // (tokens * token_bytes)),
        max_batched_tokens=service.max_batched_tokens,
    )


def cache_bytes(service: Service, engine: EngineSheet) -> float:
    """Return the bytes of each GPU that the engine gives to its KV cache."""
    sheet = load_device(service.device)
    room = Room(
        capacity_bytes=sheet.memory_bytes,
        weights_bytes=round(weight_bytes(service.model, service.tp, service.precision)),
        working_bytes=sheet.reserved_bytes + round(_working_bytes(service, engine)),
        others_bytes=0.0,
        started_bytes=0.0,
    )
    return float(room.cache_bytes(engine, engine.memory_fraction))


def weight_bytes(model: ModelArchitecture, tp: int, precision: Precision) -> float:
    """Return the bytes of a replica's weights on each GPU; fp8 leaves both ends in 16 bits."""
    ends = -(-(model.embedding_parameters + model.head_parameters("lm")) // tp)
    layers = largest_shard(model, "lm", ModelCut(tp=tp)) - ends
    return (
        layers * PRECISIONS[precision].weight_bytes
        + ends * PRECISIONS[WIDE[precision]].weight_bytes
    )


def _working_bytes(service: Service, engine: EngineSheet) -> float:
    """Return the bytes of one layer's activations and of all running sequences' logits."""
    tokens = service.max_batched_tokens or engine.max_batched_tokens
    shard = shard_of(TaskPlan(pool="", tp=service.tp), service.precision, engine)
    batch = KeptBatch(shard, 1, tokens, engine.fused_attention)
    activations = layer_activation_bytes(service.model, batch, "none")
    running = min(service.max_running, service.requests)
    logits = logits_bytes(service.model, service.tp, running, shard.value_bytes, backward=False)
    return activations + logits
