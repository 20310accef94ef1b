"""Transitions and generation of HybridFlow (Sheng et al. 2025, EuroSys), Figures 14 to 16.

Rows of Figure 14 name the engine and both tensor-parallel sizes; its training layout is t-p with DP
over what is left. Figure 15 gives generation and transition of one training layout, 1-8-2.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.catalog import load_model, resolve_job
from profiles.facts import load_facts
from rlplan.accuracy import Row
from rlplan.estimate import Estimate
from rlplan.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Workload
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.accuracy.rows import Record, forecast_row, skipped_row
from simulator.costs import transition_cost
from simulator.costs.transition import volume_of
from simulator.site import Site

DEVICE = "a100-80gb-sxm"
NODE_GPUS = 8
NETWORK_GBPS = 200.0
MODELS = {
    "7B": "llama-2-7b",
    "13B": "llama-2-13b",
    "34B": "codellama-34b",
    "70B": "llama-2-70b",
}
TRANSITIONS = {
    "HybridFlow": "hybridflow",
    "HybridFlow-V": "hybridflow-v",
    "DS-Chat": "all-gather",
    "OpenRLHF": "two-copies",
}
FIGURE_14 = re.compile(r"Tg(\d+) Pg(\d+) T(\d+) P(\d+)")
FIGURE_15 = re.compile(r"train (\d+)-(\d+)-(\d+), tg=(\d+) pg=(\d+)")
HALVES = "two copies: half of the GPUs are taken to train, half to generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """Hold a row about a transition, with what its software's constants are multiplied with.

    Attributes:
        model_bytes: Bytes of the whole model.
        received_bytes: What each GPU receives.
        nodes: Nodes of the job.
        fitted: Whether the constants are fitted on it.
    """

    index: int
    label: str
    model: str
    gpus: int
    transition: str
    train: TaskPlan
    generate: TaskPlan
    seconds: float
    model_bytes: float
    received_bytes: float
    nodes: int
    fitted: bool


@dataclass(frozen=True)
class HybridFlowFigures:
    """Forecast transitions by engine and generation by layout; the mapping's run time is skipped."""

    name: str = "hybridflow_transition_generation_search"
    about: str = (
        "Transition seconds by engine, and generation seconds by generation TP, on A100-80GB nodes "
        "of 8. Given: model, GPUs, both layouts, the engine."
    )

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table has HybridFlow's figures with their series and seconds."""
        return {"figure", "model", "gpus", "series", "config", "seconds"} <= columns

    def rows(self, records: Sequence[Record]) -> Iterable[Row]:
        """Yield a forecast for every transition and generation."""
        transitions = {row.index: row for row in transition_rows(records)}
        for index, record in enumerate(records):
            if index in transitions:
                yield self._transition(transitions[index])
            else:
                yield self._other(index, record)

    def _transition(self, row: TransitionRow) -> Row:
        note = HALVES if row.transition == "two-copies" else ""
        return forecast_row(
            self, row.index, row.label, row.seconds, transition_seconds(row),
            kind=f"transition {row.transition}", fitted=row.fitted, note=note,
        )  # fmt: skip

    def _other(self, index: int, record: Record) -> Row:
        label = f"{record['model']}, {record['gpus']} GPUs, {record['config']}"
        measured = float(record["seconds"])
        if measured == 0:
            reason = "nothing was measured: both layouts are the same"
        elif record["series"] == "generation":
            reason = "generation by TP"
        else:
            reason = "the run time of another planner's search is not forecast"
        return skipped_row(
            self, index, label, reason, kind=record["series"], measured_seconds=measured
        )


READER = HybridFlowFigures()


def transition_rows(records: Sequence[Record]) -> list[TransitionRow]:
    """Return the rows about transitions that took time."""
    found = []
    for index, record in enumerate(records):
        series, _, system = record["series"].partition(":")
        if series != "transition" or float(record["seconds"]) == 0:
            continue
        found.append(_transition_row(index, record, TRANSITIONS[system or "HybridFlow"]))
    return found


def _transition_row(index: int, record: Record, transition: str) -> TransitionRow:
    train, generate = _layouts(record, transition)
    model = load_model(MODELS[record["model"]])
    model_bytes = model.num_parameters() * PRECISIONS["bf16"].weight_bytes
    gpus = int(record["gpus"])
    return TransitionRow(
        index=index,
        label=f"{record['model']}, {gpus} GPUs, {record['config']}",
        model=record["model"],
        gpus=gpus,
        transition=transition,
        train=train,
        generate=generate,
        seconds=float(record["seconds"]),
        model_bytes=model_bytes,
        received_bytes=volume_of(transition, model_bytes, train, generate).received_bytes,
        nodes=-(-gpus // NODE_GPUS),
        fitted=_is_fitted(gpus, generate),
    )


def _is_fitted(gpus: int, generate: TaskPlan) -> bool:
    """Tell whether constants are fitted on a row: the generation groups are an even power of two.

    So both sides of the split cover all sizes of clusters, which a hash of so few rows does not.
    """
    return round(math.log2(gpus / (generate.tp * generate.pp))) % 2 == 0


def _layouts(record: Record, transition: str) -> tuple[TaskPlan, TaskPlan]:
    """Return the train and the generate layout; DP takes the GPUs that TP and PP leave."""
    gpus = int(record["gpus"])
    if found := FIGURE_14.search(record["config"]):
        tp_gen, pp_gen, tp, pp = map(int, found.groups())
    elif found := FIGURE_15.search(record["config"]):
        pp, tp, _, tp_gen, pp_gen = map(int, found.groups())
    else:
        raise ValueError(f"no layouts in {record['config']!r}")
    if transition == "two-copies":
        gpus = max(1, gpus // 2)
    train = TaskPlan(pool="p0", tp=tp, pp=pp, dp=max(1, gpus // (tp * pp)), engine="megatron-core")
    dp_gen = max(1, gpus // (tp_gen * pp_gen))
    generate = TaskPlan(pool="p0", tp=tp_gen, pp=pp_gen, dp=dp_gen, engine="vllm-0.3")
    return train, generate


def transition_seconds(row: TransitionRow) -> Estimate:
    """Return the forecast of a transition."""
    job = job_of(row.model, row.gpus)
    same_pool = row.transition != "two-copies"
    gpus = row.gpus if same_pool else max(1, row.gpus // 2)
    site = Site(DEVICE, gpus, NODE_GPUS, NETWORK_GBPS * 1e9 / 8 / NODE_GPUS)
    return transition_cost(
        row.transition, load_model(MODELS[row.model]), row.train, row.generate, site, site,
        same_pool, job, load_facts(job),
    ).total  # fmt: skip


def job_of(model: str, gpus: int) -> Job:
    """Return HybridFlow's job: 1,024 prompts of 1,024 tokens with 1,024 response tokens, PPO."""
    architecture = load_model(MODELS[model])
    roles = ("actor", "critic", "reference", "reward")
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(roles, architecture)),
        workload=Workload(prompts=1024, prompt_tokens=1024, response_tokens=1024, updates=8),
        cluster=(
            NodeGroup(
                gpu=DEVICE,
                gpus_per_node=min(gpus, NODE_GPUS),
                nodes=max(1, gpus // NODE_GPUS),
                inter_node_gbps=NETWORK_GBPS,
            ),
        ),
        engines=Engines(train="megatron-core", generate="vllm-0.3"),
        precision="bf16",
    )
    return resolve_job(job, Path())
