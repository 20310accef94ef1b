"""What a prefill pass and a decode step of one generation replica take."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from rlplan.estimate import Estimate, Source, total
from rlplan.layout import ModelCut
from rlplan.models.model import ModelArchitecture, layer_kinds
from rlplan.models.operators import Batch
from rlplan.probing import UNEVEN, ModelPass, PassName
from rlplan.simulator.costs.pricing import PassSeconds, Setting, pass_seconds
from rlplan.simulator.generation.prices.grids import CostQuality, Grid, stretches, worst_of
from rlplan.simulator.generation.prices.setting import ReplicaSetting
from rlplan.simulator.generation.replica import run_seconds
from rlplan.simulator.model.weights import fullest_stage, kinds_of_stages, layer_parameters

Cost = Callable[[int, int], Estimate]


class Steps(NamedTuple):
    """Give estimates of steps by (sequences, tokens).

    Attributes:
        exact: Ask at the very numbers, because the grid's costs are measured and interpolate by themselves.
    """

    grid: Grid
    exact: bool


class StepClock:
    """Give seconds of steps for one generation, and remember how well they are known.

    Args:
        notes: What is remembered, where clocks share it.
    """

    def __init__(self, steps: Steps, notes: set[CostQuality] | None = None) -> None:
        self._grid, self._exact = steps
        self.notes: set[CostQuality] = set() if notes is None else notes

    def __call__(self, sequences: int, tokens: float) -> float:
        """Return seconds of a step of so many sequences with a mean of `tokens` tokens each."""
        if self._exact:
            return self._grid.at(self.notes, (sequences, round(tokens)))
        return self._grid(self.notes, sequences, tokens)

    def run(self, sequences: int, first: float, steps: int) -> float:
        """Return seconds of steps at first, first + 1, ... tokens, exact between priced nodes."""
        if self._exact:
            return run_seconds(self, sequences, first, steps)
        return sum(count * self(sequences, mean) for mean, count in stretches(first, steps))

    def estimate(self, seconds: float) -> Estimate:
        """Return these seconds, summed over steps, as an estimate.

        It has the weakest source and the largest relative spread of all steps asked for.
        """
        worst = worst_of(self.notes)
        return Estimate(seconds, seconds * worst.spread, worst.source, worst.outside_range)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaSteps:
    """Hold both kinds of steps of a replica.

    Attributes:
        uneven: The same of waves whose rows are not all as long; None where they are not told apart.
    """

    prefill: Steps
    decode: Steps
    uneven: "ReplicaSteps | None" = None


def measured_steps(replica: ReplicaSetting) -> ReplicaSteps | None:
    """Return a replica's steps by measured passes, or None where they are missing."""
    setting = replica.setting
    if setting.pp * setting.shard.cp * setting.shard.ep > 1 or setting.adapter is not None:
        return None
    tp = setting.shard.tp
    if setting.device.measured_by_node and setting.site.ranks_per_node(tp) < tp:
        return None  # tensor-parallel ranks of a measured pass share a node

    def look_up(name: PassName, sequences: int, tokens: int) -> Estimate | None:
        alone = ModelPass(
            name=name,
            model=replica.model,
            head="lm",
            precision=setting.precision,
            tp=setting.shard.tp,
            sequences=max(1, sequences),
            tokens=max(1, tokens),
        )
        together = replace(alone, dp=replica.copies)
        return setting.device.model_pass(together) or setting.device.model_pass(alone)

    def cost_of_step(name: PassName) -> Cost:
        def seconds(sequences: int, tokens: int) -> Estimate:
            found = look_up(name, sequences, tokens)
            assert found is not None, "what was measured once is found again"
            return found

        return seconds

    if look_up("prefill", 1, 1) is None or look_up("decode", 1, 1) is None:
        return None

    def steps(name: PassName) -> Steps:
        return Steps(Grid(cost_of_step(name)), exact=True)

    told_apart = all(look_up(name, 1, 1) is not None for name in UNEVEN.values())
    uneven = ReplicaSteps(steps("prefill_uneven"), steps("decode_uneven")) if told_apart else None
    return ReplicaSteps(steps("prefill"), steps("decode"), uneven)


def operator_steps(replica: ReplicaSetting) -> ReplicaSteps:
    """Return a replica's steps by operators' times.

    A pipelined replica keeps as many batches in flight as it has stages: a step of all running
    sequences takes the slowest stage's time once per batch, and a prefill of p batches fills and
    drains the pipeline, so that it lasts 2 p - 1 of them. The host's work on a step falls to every batch.
    """
    setting, engine, model = replica.setting, replica.engine, replica.model
    stages = setting.pp
    host = Estimate(engine.step_seconds, 0.0, Source.DATASHEET)
    if engine.gathers_weights:
        host = host + _gathering(replica)

    def prefill(sequences: int, tokens: int) -> Estimate:
        count, length = max(1, sequences), max(1, tokens)
        batches = min(stages, count)
        each = -(-count // batches)
        batch = Batch(
            sequences=each, tokens=each * length, sequence_tokens=length, head_tokens=each
        )
        whole = _whole_pass(setting, model, batch)
        if batches == 1:
            return whole + host
        return whole + host + (_slowest_stage(setting, model, batch) + host) * (batches - 1)

    def decode(running: int, cached: int) -> Estimate:
        count = -(-max(1, running) // stages)
        batch = Batch(
            sequences=count,
            tokens=count,
            sequence_tokens=1,
            cached_tokens=max(1, cached),
            head_tokens=count,
        )
        return (_slowest_stage(setting, model, batch) + host) * stages

    return ReplicaSteps(Steps(Grid(prefill), exact=False), Steps(Grid(decode), exact=False))


def _gathering(replica: ReplicaSetting) -> Estimate:
    """Return seconds of gathering a stage's layers over all GPUs of the pool, one by one."""
    setting, shard = replica.setting, replica.setting.shard
    counts = fullest_stage(replica.model, setting.pp)
    gathers = (
        setting.collective(
            "all_gather",
            layer_parameters(kind, ModelCut(tp=shard.tp, ep=shard.ep)) * shard.value_bytes,
            replica.gathering_gpus,
            1,
        )
        * count
        for kind, count in zip(layer_kinds(replica.model).models, counts, strict=True)
    )
    return total(gathers)


def _whole_pass(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    whole = _layers(setting, model, batch, layer_kinds(model).counts(0, model.num_layers))
    first, last = _ends(setting, model, batch)
    return (whole + first + last).total + _hops(setting, model, batch)


def _slowest_stage(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    counts = kinds_of_stages(model, ModelCut(pp=setting.pp))
    first, last = _ends(setting, model, batch)
    if setting.pp == 1:
        return (_layers(setting, model, batch, counts[0]) + first + last).total
    stages = [
        (_layers(setting, model, batch, counts[0]) + first).total,
        (_layers(setting, model, batch, counts[-1]) + last).total,
    ]
    if len(counts[0]) > 1:
        between = dict.fromkeys(counts[1:-1])
        stages += [_layers(setting, model, batch, each).total for each in between]
    hop = _hops(setting, model, batch) * (1 / (setting.pp - 1))
    return max(stages, key=lambda stage: stage.seconds) + hop


def _layers(
    setting: Setting, model: ModelArchitecture, batch: Batch, counts: tuple[int, ...]
) -> PassSeconds:
    """Return what so many layers of each kind take, one after another."""
    kinds = zip(layer_kinds(model).models, counts, strict=True)
    each = (pass_seconds(setting, kind, "layer", batch) * count for kind, count in kinds)
    return reduce(PassSeconds.__add__, each)


def _ends(
    setting: Setting, model: ModelArchitecture, batch: Batch
) -> tuple[PassSeconds, PassSeconds]:
    return (
        pass_seconds(setting, model, "embedding", batch),
        pass_seconds(setting, model, "sampling head", batch),
    )


def _hops(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    """Return seconds of handing a batch's activations from stage to stage."""
    num_bytes = batch.tokens * model.hidden_size * setting.shard.value_bytes
    return setting.send(num_bytes) * (setting.pp - 1)
