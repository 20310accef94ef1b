"""Pre-training iterations as published tables give them: one optimizer step of one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rlplan.dataflow import Task
from rlplan.estimate import Estimate
from rlplan.evals.rows import fitted_on, row_key
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.models import ModelArchitecture, Precision
from rlplan.plan import Recompute, TaskPlan
from rlplan.planner.measured.rows import Record, forecast_row, skipped_row
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.accuracy import Row
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.passes import update_parts
from rlplan.simulator.costs.taskcost import cost_of
from rlplan.simulator.placed import PlacedTask, PlacedTasks, Site
from rlplan.trainers import USUAL_TRAINER, TrainerOptions
from rlplan.workload import Workload

NODE_GPUS = 8
# Of the tables' GPTs, whatever the length of their sequences.
MAX_POSITIONS = 2048
TASK = Task(name="actor.update", role="actor", kind="train", inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Hold the published settings of one measured iteration.

    Attributes:
        engine: Name of the engine sheet, or the sheet itself while its constants are fitted.
        global_batch: Sequences of an iteration.
        network_bytes_per_second: Network of one node, all its cards together, one direction.
        node_gpus: GPUs of a node.
        linked_gpus: GPUs, of several nodes, that reach each other over the link inside a node; 0 is those of a node.
        ep: Ranks that share out experts, each of them whole.
        network: Kind of the network where it has a sheet.
        options: How the trainer brings tokens to experts, and what it captures in graphs.
    """

    model: ModelArchitecture
    engine: str
    device: str
    precision: Precision
    gpus: int
    network_bytes_per_second: float
    node_gpus: int = NODE_GPUS
    linked_gpus: int = 0
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    chunks: int = 1
    zero: int = 0
    micro_batch: int
    global_batch: int
    sequence_tokens: int
    recompute: Recompute
    options: TrainerOptions = USUAL_TRAINER
    network: str | None = None

    @property
    def label(self) -> str:
        """Return the settings for people."""
        model, sizes = self.model, f"TP {self.tp}, PP {self.pp}, DP {self.dp}"
        return (
            f"hidden {model.hidden_size}, {model.num_layers} layers, {sizes}, "
            f"micro-batch {self.micro_batch}, batch {self.global_batch}"
        )


class TrialFacts(Facts):
    """Answer as other facts do, with engine sheets on trial in place of those of their names."""

    def __init__(self, facts: Facts, device: str, engines: dict[str, EngineSheet]) -> None:
        super().__init__({device: facts.device(device)}, facts.label)
        self._engines = engines

    def engine(self, name: str) -> EngineSheet:
        """Return the sheet on trial of that name, or the catalog's."""
        return self._engines.get(name) or super().engine(name)


def iteration_seconds(run: Pretraining, engines: dict[str, EngineSheet] | None = None) -> Estimate:
    """Return the forecast of an iteration.

    Args:
        engines: Sheets that take the place of the catalog's, while their constants are fitted.
    """
    parts = iteration_parts(run, engines)
    return cost_of(parts).total


def iteration_parts(
    run: Pretraining, engines: dict[str, EngineSheet] | None = None
) -> dict[str, Estimate]:
    """Return the forecast of an iteration by cause."""
    job = _job(run)
    facts = _facts(run.device)
    if engines is not None:
        facts = TrialFacts(facts, run.device, engines)
    layout = TaskPlan(
        pool="all",
        tp=run.tp,
        pp=run.pp,
        dp=run.dp,
        cp=run.cp,
        ep=run.ep,
        expert_tp=1 if run.ep > 1 else None,
        engine=run.engine,
        micro_batch=run.micro_batch,
        chunks=run.chunks,
        zero=run.zero,  # type: ignore[arg-type]
        recompute=run.recompute,
    )
    network = run.network_bytes_per_second / run.node_gpus
    site = Site(run.device, run.gpus, run.linked_gpus or run.node_gpus, network, run.network)
    parts = update_parts(PlacedTasks.of(PlacedTask(TASK, layout, site, job, facts)))
    return {name: part.row(0) for name, part in parts.items()}


@lru_cache(maxsize=4096)
def _job(run: Pretraining) -> Job:
    nodes = -(-run.gpus // run.node_gpus)
    return Job(
        name="pre-training",
        algorithm="grpo",
        models=FrozenDict({"actor": run.model}),
        workload=_workload(run.global_batch, run.sequence_tokens),
        cluster=(
            NodeGroup(
                gpu=run.device,
                gpus_per_node=run.node_gpus,
                nodes=nodes,
            ),
        ),
        precision=run.precision,
        trainers=FrozenDict({"actor": run.options}),
    )


@lru_cache(maxsize=64)
def _workload(sequences: int, tokens: int) -> Workload:
    """Return the workload, one object for equal ones: length statistics are remembered by object."""
    return Workload(prompts=sequences, prompt_tokens=tokens - 1, response_tokens=1)


@lru_cache(maxsize=32)
def _facts(device: str) -> Facts:
    """Return the facts of a device, remembered with all that they remember."""
    return load_facts(
        Job(
            algorithm="grpo",
            models=FrozenDict(),
            workload=Workload(prompts=1, prompt_tokens=1, response_tokens=1),
            cluster=(NodeGroup(gpu=device, gpus_per_node=NODE_GPUS),),
        )
    )


def gpt(hidden: int, heads: int, layers: int, vocab: int) -> ModelArchitecture:
    """Return a GPT of the tables: four times as wide GELU layers, biases, tied embeddings.

    Learned positions and the layer norms' shifts are left out: less than 1 % of the parameters.
    """
    return ModelArchitecture(
        name=f"gpt-{hidden}-{layers}",
        family="llama",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=4 * hidden,
        vocab_size=vocab,
        max_positions=MAX_POSITIONS,
        tied_embeddings=True,
        qkv_bias=True,
        gated_mlp=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Hold a published iteration.

    Attributes:
        run: Its settings; None where they are of a kind that is not forecast.
        reason: Why it is not forecast.
    """

    seconds: float
    kind: str
    fitted: bool = False
    run: Pretraining | None = None
    reason: str = ""
    label: str = ""
    note: str = ""


def training_row(iteration: Iteration) -> Row:
    """Return the forecast of an iteration, or the reason why there is none."""
    run, kind, seconds = iteration.run, iteration.kind, iteration.seconds
    if run is None:
        return skipped_row(iteration.label, iteration.reason, kind=kind, measured_seconds=seconds)
    return forecast_row(
        iteration.label or run.label, seconds, iteration_seconds(run),
        kind=kind, fitted=iteration.fitted, note=iteration.note,
    )  # fmt: skip


def is_fitted(record: Record, settings: Sequence[str]) -> bool:
    """Tell whether constants are fitted on the record with these settings."""
    return fitted_on(row_key(record, settings))
