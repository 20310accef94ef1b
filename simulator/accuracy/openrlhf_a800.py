"""OpenRLHF's own benchmark of 2024 on A800 (its benchmark branch): generation and training seconds.

The table gives GPUs by role and micro-batch sizes, and neither the numbers of prompts and tokens nor
the lengths: no plan can be written down for its rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlplan.accuracy import Row
from simulator.accuracy.rows import Record, skipped_row

REASON = "the batch and the lengths of prompts and responses are not published with it"


@dataclass(frozen=True)
class OpenRLHFBenchmark:
    """Know the table, and say why its rows have no forecast."""

    name: str = "openrlhf_a800"
    about: str = (
        "End-to-end seconds of OpenRLHF and DeepSpeed-Chat on A800 by GPUs of each role; the size "
        "of the work is not published with it, so no row is forecast."
    )

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table has GPUs by role and end-to-end seconds."""
        return {"model", "method", "gpus_ref_reward_actor_critic_vllm", "e2e_s"} <= columns

    def rows(self, records: Sequence[Record]) -> Iterable[Row]:
        """Yield every row with the reason why it is skipped."""
        for index, record in enumerate(records):
            gpus = record["gpus_ref_reward_actor_critic_vllm"]
            yield skipped_row(
                self, index, f"{record['model']}, GPUs {gpus}", REASON,
                kind=record["method"], measured_seconds=float(record["e2e_s"]),
            )  # fmt: skip


READER = OpenRLHFBenchmark()
