"""What a trainer keeps of a model, and how it runs its step, where its engine leaves a choice."""

from dataclasses import dataclass
from typing import Literal

from rlplan.dispatchers import DispatcherName
from rlplan.files.limits import AtLeastOne, NonNegative, Share
from rlplan.models import LinearShare, OptimizerKind, TrainingPrecision

# What a trainer keeps of a model, as far as it can leave the GPUs.
State = Literal["weights", "gradients", "optimizer"]
# How a trainer computes a layer's experts.
ExpertOrder = Literal["grouped", "one by one"]
# What of a step CUDA graphs capture: parts of layers, what stands before experts (`router`), or all of it.
Captured = Literal["attention", "mamba", "mlp", "router", "experts", "iteration"]
WHOLE_STEP: Captured = "iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """Say how a role's trainer keeps its states and makes its logits, where its engine's sheet leaves a choice.

    Attributes:
        weights: Format in which weights are kept; with it go gradients and optimizer states where nothing
            keeps a master copy. None takes the engine's own.
        gradients: Format in which gradients are accumulated and reduced, as Megatron does in that of its products
            (`grad_reduce_in_fp32` off) where its optimizer reads them so; None takes that which goes with the weights.
        waiting_gradients: Format in which whole gradients lie on the GPU until the last micro-batch of an update reduces
            them, where those before it reduce none (`no_sync` of FSDP); None reduces sharded ones after each micro-batch.
        logits: Name of a way in the engine's sheet (`memory.logit_ways`) in which log-probabilities and
            entropies are made; None takes the framework's or engine's usual one.
        logit_chunk_tokens: Tokens whose logits that way works on at a time; None takes the sheet's.
        optimizer: Optimizer states of every parameter: Adam's two moments in the format of `weights`; or the moments and
            the rounding error of the weights (Kahan summation), all in bf16; or the moments and a master copy, or what it
            has beyond weights in bf16 (`rlplan.models`).
        offloads: States that leave the GPUs where a plan off-loads the model; None takes the framework's.
        host_optimizer: Share of the parameters whose optimizer states stay in host memory, and are updated there.
        host_states: Whether all states stay in host memory, and layers are copied to the GPU when they are needed (FSDP2's off-load policy).
        unpinned_weights: Whether weights that leave the GPUs go to memory that is neither pinned nor kept (verl 0.6 to 0.9.0, FSDP2).
        host_copy: Whether the actor's weights have a copy in host memory at all times, where the framework keeps one.
        experts: How a layer's experts are computed: in one grouped product, or one after another, as in transformers before 5.0.
        dispatcher: How tokens reach experts on other ranks and come back (`rlplan/dispatchers/`); None takes the engine's usual way.
        overlaps_exchange: Whether this exchange overlaps with the computation of another micro-batch.
        overlaps_products: Whether tensor-parallel exchanges run in parts beside their product (`tp_comm_overlap`), with sequence parallelism.
        overlaps_sends: Whether pipeline stages send activations beside computing, with interleaved chunks of layers.
        popularity_spread: Standard deviation of how often experts of a layer are chosen, over its mean; 0 where they
            are balanced by force. None takes that of published traces.
        experts_in_turn: Whether tokens get a layer's experts in turn, as benchmarks' gates deal them out: those of a token lie on few ranks.
        graphs: What of a step is captured in CUDA graphs, so that the host does not launch it kernel by kernel.
        freezes_tower: Whether the tower of a model that reads images does not learn: it has no backward pass.
        shares_prompts: Whether a micro-batch computes a prompt's tokens once for its samples, as trees of prefixes do
            (`rlplan.simulator.workload`), where the engine's sheet does not say so anyway.
        fills_budgets: Whether micro-batches of token budgets are padded to them.
        adapters_apart: Whether ranks gather each matrix of an adapter by itself (FSDP 1 has frozen weights or trained ones in a unit).
        keeps_embedded: Whether each micro-batch's hidden states and their gradient stay until an update's end, with adapters (verl 0.8).
        masters_stay: Whether fp32 master weights stay on the GPU where optimizer states leave it (a plain optimizer of NeMo-RL's Megatron).
        linear_attention: What of a gated delta network each rank of its layout computes: some heads, as Megatron's own layers;
            all heads of its context-parallel rank's tokens; or all heads of all tokens.
    """

    weights: TrainingPrecision | None = None
    gradients: TrainingPrecision | None = None
    waiting_gradients: TrainingPrecision | None = None
    logits: str | None = None
    logit_chunk_tokens: AtLeastOne | None = None
    optimizer: OptimizerKind = "adam"
    offloads: tuple[State, ...] | None = None
    host_optimizer: Share = 0.0
    host_states: bool = False
    unpinned_weights: bool = False
    host_copy: bool = True
    experts: ExpertOrder = "grouped"
    dispatcher: DispatcherName | None = None
    overlaps_exchange: bool = False
    overlaps_products: bool = False
    overlaps_sends: bool = False
    popularity_spread: NonNegative | None = None
    experts_in_turn: bool = False
    graphs: tuple[Captured, ...] = ()
    freezes_tower: bool = False
    shares_prompts: bool = False
    fills_budgets: bool = False
    adapters_apart: bool = False
    keeps_embedded: bool = False
    masters_stay: bool = False
    linear_attention: LinearShare = "heads"


USUAL_TRAINER = TrainerOptions()
