"""Tensor parallelism: which matrices of a stage are cut over ranks, and how."""

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from rlplan.executor.parallel.meshes import RankMesh

# What a DTensor plan shards, by the module's name: along outputs (columns) or inputs (rows).
COLUMN_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW_MODULES = ("o_proj", "down_proj")
# What is cut along the tokens where sequence parallelism is on.
SEQUENCE_MODULES = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "norm",
)
# An MLP that every token passes beside its experts, which sees plain tensors as these do.
SHARED_EXPERT = "shared_expert"
# Norms over the heads that a rank holds: whole weights, but each rank sees its heads' gradients.
PARTIAL_GRADIENT_MODULES = ("q_norm", "k_norm")


def apply_tensor_parallelism(
    model: nn.Module, mesh: RankMesh, *, sequence_parallel: bool = False
) -> None:
    """Cut the matrices of a stage's layers over the tensor-parallel ranks, in place.

    Two all-reduces a layer in each direction (Shoeybi et al. 2019, Megatron-LM, section 3): the
    inputs of attention and MLP are marked as replicated once, not once for each matrix. With
    sequence parallelism each becomes a reduce-scatter and an all-gather, and norms and residuals
    are cut along the tokens (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
    """
    assert mesh.mesh is not None
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        inside = SHARED_EXPERT in (parent.rpartition(".")[2], last)
        style = _layer_style(
            last, Replicate() if inside else between, experts=hasattr(module, "experts")
        )
        if style is None and sequence_parallel and last in SEQUENCE_MODULES:
            style = SequenceParallel(use_local_output=True)
        elif sequence_parallel and last == "head" and getattr(module, "out_features", 0) == 1:
            style = PrepareModuleInput(  # a scalar head is whole, and reads all tokens
                input_layouts=(between,),
                desired_input_layouts=(Replicate(),),
                use_local_output=True,
            )
        if style is not None and not isinstance(module, nn.ModuleDict):
            plan[name] = style
    parallelize_module(model, mesh.mesh["tp"], plan)


def _layer_style(module: str, between: Placement, *, experts: bool) -> ParallelStyle | None:
    """Return how a module of a layer is cut; None: it is not.

    Args:
        between: How hidden states are held between attention and MLP.
        experts: Whether it has experts, which are cut by themselves and see plain tensors.
    """
    if experts:
        return _experts_style(between)
    if module == "self_attn":
        return PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
    if module in ("mlp", SHARED_EXPERT):
        return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    if module in COLUMN_MODULES:
        return ColwiseParallel()
    if module in ROW_MODULES:
        return RowwiseParallel(output_layouts=between)
    return None


def _experts_style(between: Placement) -> ParallelStyle | None:
    if not isinstance(between, Shard):
        return None
    return PrepareModuleInputOutput(
        input_layouts=(between,),
        desired_input_layouts=(Replicate(),),
        use_local_input=True,
        output_layouts=(Replicate(),),
        desired_output_layouts=(between,),
        use_local_output=True,
    )
