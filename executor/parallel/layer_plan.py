"""How a layer's modules are cut over the tensor-parallel ranks, by torch's plans of distributed tensors.

Apart from `rlplan.executor.parallel.tensor_parallel`, since distributed tensors take a worker more than a second to
load, and only what is cut by them needs them.
"""

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
from rlplan.executor.parallel.tensor_parallel import (
    COLUMN_MODULES,
    ROW_MODULES,
    SEQUENCE_MODULES,
    SHARED_EXPERTS,
)


def apply_tensor_parallelism(model: nn.Module, mesh: RankMesh, *, sequence_parallel: bool) -> None:
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
        inside = not {parent.rpartition(".")[2], last}.isdisjoint(SHARED_EXPERTS)
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
    if module in ("mlp", *SHARED_EXPERTS):
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
