"""Forecast an engine that has a replica's GPUs for itself and a queue of equal requests."""

from dataclasses import dataclass, replace
from functools import cache

from rlplan.estimate import Estimate, Source
from rlplan.models import PRECISIONS, WIDE, KeptBatch, ModelArchitecture, Precision
from rlplan.parts.dense_mlp import matrices
from rlplan.parts.experts import computed_per_token, input_size
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import DeviceFacts
from rlplan.profiles.jobs.checks import MOST_SEQUENCES
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.generating import generated, limits_of
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.generation.replica import ReplicaLimits, with_states_apart
from rlplan.simulator.generation.shares import Share
from rlplan.simulator.memory.transition_memory import Room
from rlplan.simulator.model import (
    cached_sequence,
    largest_shard,
    layer_activation_bytes,
    logits_bytes,
    shard_of,
)
from rlplan.simulator.placed import Site
from rlplan.workload import Lognormal, Uniform, sample_lengths

# Replicas of these tables lie inside one node; the network plays no part.
NO_NETWORK = 1e9


@cache
def device_facts(name: str) -> DeviceFacts:
    """Return the facts of a device without a profile, remembered among tables."""
    return DeviceFacts(load_device(name))


COUNTS = ("tp", "ep", "copies", "requests", "prompt_tokens", "response_tokens", "max_running")
# Lengths that are not alike are drawn once, the same on any machine.
SEED = 0
# Of `starting_seconds`, one sigma over its mean: of the ten runs of 128 tokens by vLLM 0.11.0 in evals/held/servers.csv, whose
# templates are of unlike lengths.
STARTING_SPREAD = 0.34


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Describe a measured service: replicas of one engine, and requests that all wait from the start.

    Attributes:
        prompt_tokens: Of each request.
        response_tokens: Of each request.
        max_batched_tokens: Most tokens of a step; 0 is the engine's usual number.
        ep: Ranks that share out whole experts; 1 cuts each over the ranks of `tp`.
        copies: Replicas that share out the requests, and with `ep` the experts, as under data-parallel attention.
        memory_fraction: Of a card for weights and cache; 0 is the engine's usual one.
        cache_value_bytes: Of a value in the cache; 0 is that of the weights.
        spread: Standard deviation of prompts and of responses over their mean (log-normal); 0 has all alike.
        even: Whether prompts and responses have any length up to twice their mean, each as likely, in place of `spread`.
        longest_tokens: Of a prompt with its response where they are not alike; half of it is the longest prompt.
        whole_windows: Whether layers that attend to a window keep what lies before it.
        starting_seconds: Before the first prompt is computed: a server reads all requests that wait, and makes prompts of them.
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
    ep: int = 1
    copies: int = 1
    memory_fraction: float = 0.0
    cache_value_bytes: int = 0
    spread: float = 0.0
    even: bool = False
    longest_tokens: int = 0
    whole_windows: bool = False
    starting_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no engine was ever measured on; playing it would not end.

        Raises:
            ValueError: Names the count.
        """
        for name in COUNTS:
            count = getattr(self, name)
            if not 1 <= count <= MOST_SEQUENCES:
                raise ValueError(f"{name} of {count} is not between 1 and {MOST_SEQUENCES:,}")

    @property
    def layout(self) -> TaskPlan:
        """Return the replicas' layout, on a pool without a name."""
        whole = 1 if self.ep > 1 else None
        return TaskPlan(pool="", tp=self.tp, dp=self.copies, ep=self.ep, expert_tp=whole)

    @property
    def value_bytes(self) -> int:
        """Return the bytes of a value in the cache."""
        return self.cache_value_bytes or PRECISIONS[self.precision].weight_bytes

    @property
    def most_tokens(self) -> int:
        """Return the tokens of the longest prompt with its response."""
        whole = self.prompt_tokens + self.response_tokens
        return self.longest_tokens or (2 * whole if self.even else whole)

    @property
    def share(self) -> Share:
        """Return the prompts and responses of the replica with most requests."""
        count = -(-self.requests // self.copies)
        if not (self.spread or self.even):
            return (self.prompt_tokens,) * count, (self.response_tokens,) * count
        most = (self.most_tokens // 2, max(1, self.most_tokens - self.prompt_tokens))
        prompts, responses = (
            sample_lengths(self._lengths(mean, most[at]), count, SEED + at)
            for at, mean in enumerate((self.prompt_tokens, self.response_tokens))
        )
        return prompts, responses

    def _lengths(self, mean: int, most: int) -> Lognormal | Uniform:
        if self.even:
            return Uniform(low=1, high=2 * mean)
        return Lognormal(mean=mean, std=self.spread * mean, max=most)


def serve(service: Service, engine: EngineSheet) -> Estimate:
    """Return the seconds from the first request to the last response."""
    device = device_facts(service.device)
    gpus = service.tp * service.copies
    per_node = max(gpus, device.sheet.gpus_per_node)
    setting = setting_on(
        replace(service.layout, engine=engine.name),
        engine,
        device,
        Site(service.device, gpus, per_node, NO_NETWORK),
        service.precision,
        cache_value_bytes=service.cache_value_bytes,
    )
    steps = engine_steps(ReplicaSetting(service.model, engine, setting))
    prefill, decode = generated(steps, limits(service, engine), service.share)
    first = service.starting_seconds
    return Estimate(first, first * STARTING_SPREAD, Source.FITTED) + prefill + decode


def limits(service: Service, engine: EngineSheet) -> ReplicaLimits:
    """Return how the engine batches these requests."""
    tokens = engine.kv_block_tokens
    longest = 1 if service.whole_windows else service.most_tokens  # none is longer than a window
    held = cached_sequence(service.model, service.tp, 1, service.value_bytes, longest)
    block_bytes = tokens * held.token_bytes
    limits = limits_of(
        engine,
        service.max_running,
        int(cache_bytes(service, engine) // block_bytes),
        max_batched_tokens=service.max_batched_tokens,
        state_blocks=-(-held.fixed_bytes // block_bytes),
    )
    return with_states_apart(limits, engine, service.model)


def cache_bytes(service: Service, engine: EngineSheet) -> float:
    """Return the bytes of each GPU that the engine gives to its KV cache."""
    sheet = load_device(service.device)
    room = Room(
        capacity_bytes=sheet.memory_bytes,
        weights_bytes=round(weight_bytes(service.model, service.layout, service.precision)),
        working_bytes=sheet.reserved_bytes + round(_working_bytes(service, engine)),
        others_bytes=0.0,
        started_bytes=0.0,
    )
    return float(room.cache_bytes(engine, service.memory_fraction or engine.memory_fraction))


def weight_bytes(model: ModelArchitecture, layout: TaskPlan, precision: Precision) -> float:
    """Return the bytes of a replica's weights on each GPU; fp8 leaves both ends in 16 bits."""
    ends = -(-(model.embedding_parameters + model.head_parameters("lm")) // layout.tp)
    layers = largest_shard(model, "lm", layout.cut) - ends
    return (
        layers * PRECISIONS[precision].weight_bytes
        + ends * PRECISIONS[WIDE[precision]].weight_bytes
    )


def _working_bytes(service: Service, engine: EngineSheet) -> float:
    """Return the bytes of one layer's activations and of all running sequences' logits."""
    tokens = service.max_batched_tokens or engine.max_batched_tokens
    shard = shard_of(service.layout, service.precision, engine)
    batch = KeptBatch(shard, 1, tokens, engine.fused_attention)
    activations = layer_activation_bytes(service.model, batch, "none")
    running = min(service.max_running, -(-service.requests // service.copies))
    logits = logits_bytes(service.model, service.tp, running, shard.value_bytes, backward=False)
    return activations + logits + gathered_bytes(service, tokens)


def gathered_bytes(service: Service, tokens: int) -> float:
    """Return the bytes in which a rank's experts work on the tokens of all copies, as if all chose its experts.

    Each choice has its input, what the first two matrices make of it, their product, and its output in 16 bits (TensorRT-LLM,
    cutlass_kernels/moe_gemm/moe_kernels.cu, getWorkspaceDeviceBufferSizes: rows of all tokens times experts per token).
    """
    model = service.model
    if service.copies == 1 or not model.num_experts:
        return 0.0
    rows = tokens * service.copies * computed_per_token(model)
    values = 2 * input_size(model) + matrices(model) * model.moe_ffn_size
    return float(rows * values * PRECISIONS[WIDE[service.precision]].weight_bytes)
