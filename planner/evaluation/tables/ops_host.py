"""Host time of an engine's step: the host-overhead table of microsoft/vidur (MIT)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.evaluation.rows import Record, forecast_row
from profiles.catalog import load_engine
from rlplan.estimate import Estimate, Source
from rlplan.results.accuracy import Row
from rlplan.units import seconds_from_ms

ENGINE = "vllm-0.3"
PARTS = ("schedule", "prepare_inputs_e2e", "sampler_e2e", "process_model_outputs")
SPREAD = 0.10  # of host times over models, whose numbers of sequences are the same


@dataclass(frozen=True)
class HostSteps:
    """Forecast scheduling, preparing inputs, sampling and processing outputs of one step."""

    name: str = "ops_host"
    about: str = (
        "Host seconds of a decode step of vLLM of 2024 by running sequences and tensor-parallel "
        "size, without the messages of its Ray workers: scheduling, inputs, sampling, outputs."
    )

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table has the host's parts of a step by batch."""
        wanted = {f"{part}_median" for part in PARTS}
        return wanted | {"batch_size", "tensor_parallel_degree"} <= columns

    def rows(self, records: Sequence[Record]) -> Iterable[Row]:
        """Yield a forecast of every step."""
        engine = load_engine(ENGINE)
        for index, record in enumerate(records):
            batch, tp = int(record["batch_size"]), int(record["tensor_parallel_degree"])
            measured = seconds_from_ms(sum(float(record[f"{part}_median"]) for part in PARTS))
            worker = engine.steps.worker_seconds if tp > 1 else 0.0
            seconds = engine.step_seconds + engine.steps.seconds_per_sequence * batch + worker
            yield forecast_row(
                self,
                index,
                f"{record['model_name']} TP{tp} batch {batch}",
                measured,
                Estimate(seconds, seconds * SPREAD, Source.FITTED),
                kind=f"TP {tp}",
                fitted=True,
            )


READER = HostSteps()
