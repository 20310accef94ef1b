"""Reduce gradients, clip and step, however weights, gradients and optimizer states are sharded.

One interface, one class for each way (Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5):
replicated (stage 0), sharded optimizer states (stage 1), and in `executor.weights.fully_sharded` sharded
gradients and weights (stages 2 and 3).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from executor.parallel.meshes import RankGroup, RankMesh
from executor.weights.flat import FlatParameters, local_part

# Keeps the division finite where all gradients are zero, as torch.nn.utils.clip_grad_norm_ does.
SMALLEST_NORM = 1e-6


class ShardOptimizer(ABC):
    """Train a rank's part of a model with AdamW.

    Attributes:
        adam: Torch's optimizer of what this rank steps.
    """

    adam: torch.optim.Optimizer

    @abstractmethod
    def whole_moments(self) -> dict[str, Tensor]:
        """Return each state of AdamW in one flat tensor, laid out as the weights' `whole_values`.

        All copies of the model gather together, and get the same. Empty before the first step.
        """

    @abstractmethod
    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over states that `whole_moments` returned, whatever sharded them, after `steps` steps."""

    @property
    def steps(self) -> int:
        """Return the optimizer's steps so far."""
        states = list(self.adam.state.values())
        return int(states[0]["step"]) if states else 0

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Sum the gradients over the copies of the model, and over what else shares a weight."""

    @abstractmethod
    def squared_norm(self) -> Tensor:
        """Return the sum of squares of the gradient of all weights that ranks step between them. ()."""

    @abstractmethod
    def step_scaled(self, factor: Tensor) -> None:
        """Step with the gradients times a factor, and clear them."""

    def clip_and_step(self, max_norm: float) -> Tensor:
        """Clip the whole model's gradient to a norm, step, and clear; return the norm before. ()."""
        norm = self.squared_norm().sqrt()
        self.step_scaled(clipping_factor(norm, max_norm))
        return norm

    def states(self) -> list[Tensor]:
        """Return the optimizer's states on the device; none before the first step."""
        values = [value for state in self.adam.state.values() for value in state.values()]
        return [local_part(value) for value in values if value.dim() > 0]


class ReplicatedOptimizer(ShardOptimizer):
    """Keep whole states on every copy of the model; gradients are summed in one flat bucket."""

    def __init__(
        self, flat: FlatParameters, mesh: RankMesh, copies: RankGroup, learning_rate: float
    ) -> None:
        self._flat, self._mesh, self._copies = flat, mesh, copies
        self.adam = adam_of(flat.values, flat.gradients, learning_rate)

    def whole_moments(self) -> dict[str, Tensor]:
        """Return the states, which every rank holds whole."""
        return moments_of(self.adam)

    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over whole states."""
        set_moments(self.adam, [moments], steps)

    def reduce_gradients(self) -> None:
        """Sum the flat gradient over the copies."""
        gradients = _gradients(self._flat)
        sum_shared_gradients(self._flat, self._mesh)
        self._copies.sum(gradients)

    def squared_norm(self) -> Tensor:
        """Return the sum of squares, of which every copy knows all."""
        gradients = _gradients(self._flat)
        squares = self._flat.sum_of_squares(slice(0, len(gradients)), self._mesh)
        return self._mesh.sum_over_pp(self._mesh.sum_over_tp(squares))

    def step_scaled(self, factor: Tensor) -> None:
        """Step the whole of this rank's weights."""
        gradients = _gradients(self._flat)
        gradients.mul_(factor)
        self.adam.step()
        gradients.zero_()


class ShardedOptimizer(ShardOptimizer):
    """Keep states of a slice of the weights; gradients are scattered, weights gathered (stage 1)."""

    def __init__(
        self, flat: FlatParameters, mesh: RankMesh, copies: RankGroup, learning_rate: float
    ) -> None:
        assert flat.stored_gradients is not None
        self._flat, self._mesh, self._copies = flat, mesh, copies
        width = len(flat.stored_values) // copies.size
        self._slice = slice(copies.position * width, (copies.position + 1) * width)
        self.adam = adam_of(
            flat.stored_values[self._slice], flat.stored_gradients[self._slice], learning_rate
        )

    def whole_moments(self) -> dict[str, Tensor]:
        """Return the states of all slices."""
        return {name: self._gathered(mine) for name, mine in moments_of(self.adam).items()}

    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over this rank's slice of whole states."""
        mine = {}
        for name, whole in moments.items():
            stored = torch.zeros_like(self._flat.stored_values)
            stored[: len(whole)] = whole
            mine[name] = stored[self._slice].clone()
        set_moments(self.adam, [mine], steps)

    def _gathered(self, mine: Tensor) -> Tensor:
        stored = torch.empty_like(self._flat.stored_values)
        if self._copies.size > 1:
            dist.all_gather_into_tensor(stored, mine, group=self._copies.group)
        else:
            stored.copy_(mine)
        return stored[: len(self._flat.values)]

    def reduce_gradients(self) -> None:
        """Sum this rank's slice of the flat gradient over the copies."""
        stored = self._flat.stored_gradients
        assert stored is not None
        sum_shared_gradients(self._flat, self._mesh)
        if self._copies.size > 1:
            reduced = torch.empty_like(stored[self._slice])
            dist.reduce_scatter_tensor(reduced, stored, group=self._copies.group)
            stored[self._slice] = reduced

    def squared_norm(self) -> Tensor:
        """Return the sum of squares, of which every copy knows a slice."""
        stop = min(self._slice.stop, len(self._flat.values))
        span = slice(min(self._slice.start, stop), stop)
        squares = self._mesh.sum_over_tp(self._flat.sum_of_squares(span, self._mesh))
        return self._copies.sum(self._mesh.sum_over_pp(squares))

    def step_scaled(self, factor: Tensor) -> None:
        """Step the slice, then gather all slices."""
        stored = self._flat.stored_gradients
        assert stored is not None
        stored[self._slice].mul_(factor)
        self.adam.step()
        stored.zero_()
        if self._copies.size > 1:
            with torch.no_grad():
                whole = self._flat.stored_values
                mine = whole[self._slice].clone()
                dist.all_gather_into_tensor(whole, mine, group=self._copies.group)


MOMENTS = ("exp_avg", "exp_avg_sq")


def moments_of(adam: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the states of an optimizer of one flat tensor, by name; none before the first step."""
    return {name: state[name] for state in adam.state.values() for name in MOMENTS}


def set_moments(
    adam: torch.optim.Optimizer, moments: Sequence[Mapping[str, Tensor]], steps: int
) -> None:
    """Give an optimizer the states of its parameters, in their order, after so many steps."""
    parameters = [weight for group in adam.param_groups for weight in group["params"]]
    for weight, states in zip(parameters, moments, strict=True):
        held = {name: state.detach().clone() for name, state in states.items()}
        if held:
            adam.state[weight] = {"step": torch.tensor(float(steps)), **held}


def sum_shared_gradients(flat: FlatParameters, mesh: RankMesh) -> None:
    """Sum gradients of weights that ranks of one copy of the model share, in place.

    Norms over a rank's heads are whole weights of which each tensor-parallel rank sees a part of the
    gradient; a tied embedding has one part of it at each end of the pipeline.
    """
    gradients = _gradients(flat)
    if flat.partial_stop > flat.sharded_stop:
        mesh.sum_over_tp(gradients[flat.sharded_stop : flat.partial_stop])
    if flat.shared.stop > flat.shared.start:
        dist.all_reduce(gradients[flat.shared], group=mesh.ends)


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return what brings a gradient of that norm down to `max_norm`; 1 where it is smaller. ()."""
    return (max_norm / (norm + SMALLEST_NORM)).clamp(max=1.0)


def adam_of(
    values: Tensor, gradients: Tensor | None, learning_rate: float
) -> torch.optim.Optimizer:
    """Return AdamW over a flat tensor; weight decay is zero, as usual in RLHF."""
    weights = nn.Parameter(values)
    weights.grad = gradients
    return torch.optim.AdamW([weights], lr=learning_rate, weight_decay=0.0, foreach=False)


def _gradients(flat: FlatParameters) -> Tensor:
    assert flat.gradients is not None, "a model that is not trained has no gradients"
    return flat.gradients
