"""Reduce gradients, clip and step, however weights, gradients and optimizer states are sharded.

One interface, one class for each way (Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5):
flat weights (stages 0 and 1), and in `rlplan.executor.weights.fully_sharded` sharded
gradients and weights (stages 2 and 3).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplan.errors import DivergedError
from rlplan.executor.parallel.meshes import RankGroup, RankMesh
from rlplan.executor.weights.flat import FlatParameters, local_part
from rlplan.job import Hyperparameters
from rlplan.models import LearningRateSchedule

MOMENTS = ("exp_avg", "exp_avg_sq")
# Device types on which the fused optimizer is used. On a CPU its rounding differs in the last bit of some weights
# (`benchmarks/fused_optimizer.py`); separate operations there make runs repeat bit for bit.
FUSED_ON = ("cuda",)
# Keeps the division finite where all gradients are zero, as torch.nn.utils.clip_grad_norm_ does.
SMALLEST_NORM = 1e-6


def adam_of(weights: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW of weights on one device, plain tensors, in one kernel where the device has it.

    Weight decay is zero, as usual in RLHF, unless a job says else.
    """
    fused = weights[0].device.type in FUSED_ON
    return torch.optim.AdamW(
        weights, lr=learning_rate, weight_decay=0.0, foreach=False, fused=fused
    )


class ShardOptimizer(ABC):
    """Train a rank's part of a model with AdamW.

    Attributes:
        adam: Torch's optimizer of what this rank steps.
    """

    adam: torch.optim.Optimizer
    _schedule: LearningRateSchedule | None = None
    _full_rate = 0.0
    _steps_per_iteration = 1

    def configure(self, settings: Hyperparameters, steps_per_iteration: int) -> None:
        """Take over what a job says of AdamW, but for the learning rate that it was made with.

        What the job leaves open stays as it was. A schedule counts the optimizer's own steps, so that it
        goes on from a checkpoint in any layout.
        """
        given = {
            "weight_decay": settings.weight_decay,
            "betas": settings.betas,
            "eps": settings.epsilon,
        }
        for group in self.parameter_groups():
            group.update({name: value for name, value in given.items() if value is not None})
        self._schedule, self._full_rate = settings.schedule, self.learning_rate
        self._steps_per_iteration = steps_per_iteration

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return torch's settings of all that this rank steps."""
        return self.adam.param_groups

    @property
    def learning_rate(self) -> float:
        """Return the rate of the last update, or that which the first one begins with."""
        return float(self.parameter_groups()[0]["lr"])

    def _follow_schedule(self) -> None:
        """Set the rate of the next update."""
        if self._schedule is None:
            return
        share = self._schedule.share(self.steps // self._steps_per_iteration)
        for group in self.parameter_groups():
            group["lr"] = share * self._full_rate

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

    @abstractmethod
    def clear_gradients(self) -> None:
        """Clear the gradients without a step."""

    def clip_and_step(self, max_norm: float) -> Tensor:
        """Clip the whole model's gradient to a norm, step, and clear; return the norm before. ().

        A gradient whose norm is not finite is cleared without a step, on all ranks alike: one batch spoils neither weights
        nor moments.

        Raises:
            DivergedError: The learning rate is too large for any step.
        """
        norm = self.squared_norm().sqrt()
        if not math.isfinite(norm):
            self.clear_gradients()
            return norm
        self._follow_schedule()
        self._check_rate()
        self.step_scaled(clipping_factor(norm, max_norm))
        return norm

    def _check_rate(self) -> None:
        """Refuse a rate with which torch's AdamW, which divides it by 1 - beta_1 in its first step, fails.

        Raises:
            DivergedError: The step's size is no number of 32 bits.
        """
        for group in self.parameter_groups():
            if float(group["lr"]) / (1 - group["betas"][0]) > torch.finfo(torch.float32).max:
                raise DivergedError(f"a step at the learning rate {group['lr']:g} is not finite")

    def has_finite_weights(self) -> bool:
        """Tell whether all weights are finite that this rank steps; takes no memory."""
        weights = (each for group in self.parameter_groups() for each in group["params"])
        return all(
            math.isfinite(bound)
            for weight in weights
            if weight.numel()
            for bound in weight.detach().aminmax()
        )

    def states(self) -> list[Tensor]:
        """Return the optimizer's states on the device; none before the first step."""
        values = [value for state in self.adam.state.values() for value in state.values()]
        return [local_part(value) for value in values if value.dim() > 0]


class FlatOptimizer(ShardOptimizer):
    """Step flat weights: all of them on every copy (stage 0), or a slice on each (stage 1).

    Gradients are summed in one bucket; where each copy steps a slice, they are scattered, and the
    weights gathered.

    Args:
        copies: The ranks that hold the same weights.
        sharded: Whether each of them keeps the states of a slice.
    """

    def __init__(
        self,
        flat: FlatParameters,
        mesh: RankMesh,
        copies: RankGroup,
        learning_rate: float,
        *,
        sharded: bool,
    ) -> None:
        assert flat.stored_gradients is not None, "a model that is not trained has no gradients"
        self._flat, self._gradients, self._mesh = flat, flat.stored_gradients, mesh
        self._copies, self._sharded = copies, sharded and copies.size > 1
        width = len(self._gradients) // (copies.size if self._sharded else 1)
        first = copies.position * width if self._sharded else 0
        self._slice = slice(first, first + width)
        weights = nn.Parameter(flat.stored_values[self._slice])
        weights.grad = self._gradients[self._slice]
        self.adam = adam_of([weights], learning_rate)

    def whole_moments(self) -> dict[str, Tensor]:
        """Return the states of all slices."""
        moments = [(name, state[name]) for state in self.adam.state.values() for name in MOMENTS]
        return {name: self._gathered(mine) for name, mine in moments}

    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over this rank's slice of whole states."""
        mine = {}
        for name, whole in moments.items():
            stored = torch.zeros_like(self._flat.stored_values)
            stored[: len(whole)] = whole
            mine[name] = stored[self._slice]
        set_moments(self.adam, [mine], steps)

    def _gathered(self, mine: Tensor) -> Tensor:
        if not self._sharded:
            return mine
        stored = torch.empty_like(self._flat.stored_values)
        dist.all_gather_into_tensor(stored, mine, group=self._copies.group)
        return stored[: len(self._flat.values)]

    def reduce_gradients(self) -> None:
        """Sum the flat gradient over the copies, or this rank's slice of it.

        Gradients of weights that ranks of one copy share are summed first: norms over a rank's heads
        are whole weights of which each tensor-parallel rank sees a part of the gradient; a tied
        embedding has one part of it at each end of the pipeline.
        """
        flat, gradients = self._flat, self._gradients
        if flat.partial_stop > flat.sharded_stop:
            self._mesh.sum_over_tp(gradients[flat.sharded_stop : flat.partial_stop])
        if flat.tied.stop > flat.tied.start:
            dist.all_reduce(gradients[flat.tied], group=self._mesh.ends)
        if not self._sharded:
            self._copies.sum(gradients)
            return
        reduced = torch.empty_like(gradients[self._slice])
        dist.reduce_scatter_tensor(reduced, gradients, group=self._copies.group)
        gradients[self._slice] = reduced

    def squared_norm(self) -> Tensor:
        """Return the sum of squares, of which every copy knows all, or its slice."""
        stop = min(self._slice.stop, len(self._flat.values))
        span = slice(min(self._slice.start, stop), stop)
        squares = self._mesh.sum_over_tp(self._flat.sum_of_squares(span, self._mesh))
        squares = self._mesh.sum_over_pp(squares)
        return self._copies.sum(squares) if self._sharded else squares

    def step_scaled(self, factor: Tensor) -> None:
        """Step this rank's slice, then gather all slices."""
        self._gradients[self._slice].mul_(factor)
        self.adam.step()
        self.clear_gradients()
        if self._sharded:
            with torch.no_grad():
                whole = self._flat.stored_values
                mine = whole[self._slice].clone()
                dist.all_gather_into_tensor(whole, mine, group=self._copies.group)

    def clear_gradients(self) -> None:
        """Set the flat gradient to zero."""
        self._gradients.zero_()


def set_moments(
    adam: torch.optim.Optimizer, moments: Sequence[Mapping[str, Tensor]], steps: int
) -> None:
    """Give an optimizer the states of its parameters, in their order, after so many steps."""
    parameters = [
        (weight, weight.device if group["fused"] else torch.device("cpu"))
        for group in adam.param_groups
        for weight in group["params"]
    ]
    for (weight, counts_on), states in zip(parameters, moments, strict=True):
        held = {name: state.detach().clone() for name, state in states.items()}
        if held:
            adam.state[weight] = {"step": torch.tensor(float(steps), device=counts_on), **held}


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return what brings a gradient of that norm down to `max_norm`; 1 where it is smaller. ()."""
    return (max_norm / (norm + SMALLEST_NORM)).clamp(max=1.0)
