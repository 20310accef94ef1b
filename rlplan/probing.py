"""What a profile asks of the machine: passes of a model, run by whoever runs them in a job.

`profiles/probes/` knows what to measure, how often and when to stop; the executor knows how a model
runs. The front door hands the executor's runner to the probe, so that what is measured is the code
that runs, and no room imports the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from rlplan.models import Head, ModelArchitecture, Precision
from rlplan.workload import Workload

PassName = Literal[
    "infer",
    "train",
    "infer_usual",
    "train_usual",
    "prefill",
    "decode",
    "prefill_uneven",
    "decode_uneven",
    "optimizer",
    "gradient_reduction",
    "experience",
    "call",
    "fetch",
    "queue_call",
    "weight_sync",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass:
    """Name one pass of a model in one layout.

    Attributes:
        name: `infer` (forward of a micro-batch, with its output), `train` (forward, loss, backward
            of a micro-batch), `infer_usual` and `train_usual` (the same of a micro-batch as the job has them:
            lengths spread about `tokens` as the job's are, prompts shared by their samples), `prefill` and
            `decode` (one step of generation), `prefill_uneven` and `decode_uneven` (the same of rows that are as
            long as they come, padded to the longest of them), `optimizer` (clip and step of a whole model),
            `gradient_reduction` (over `dp` ranks), `experience` (rewards and advantages of a rank's `sequences`,
            before an update of a model with this head),
            `weight_sync` (train to generate layout, into another process), `call` (handing a call
            over to busy workers, with `tokens` bytes that their last one made), `fetch` (of `tokens`
            bytes that another worker put), `queue_call` (writing rows of `tokens` bytes to a storage actor of the
            transfer queue, or reading them).
        tp: Ranks that run the pass together with tensor parallelism.
        dp: Copies of the layout that work at once, as data-parallel ranks do. Ranks of `infer`,
            `train`, `experience` and `gradient_reduction` wait for each other, so the slowest
            counts; generation runs while nothing else does, so devices beyond `dp * tp` stand idle.
        sequences: Sequences in the (micro-)batch.
        tokens: Tokens of each sequence, of rows that are padded those of the longest; for `decode` those already
            cached.
    """

    name: PassName
    model: ModelArchitecture
    head: Head
    precision: Precision
    tp: int = 1
    dp: int = 1
    sequences: int = 1
    tokens: int = 1


# By the pass of sequences that are all alike, that of a job's own.
USUAL: Mapping[PassName, PassName] = MappingProxyType(
    {"infer": "infer_usual", "train": "train_usual"}
)


# By the pass of a wave with rows of one length, the same pass with rows of different lengths.
UNEVEN: Mapping[PassName, PassName] = MappingProxyType(
    {"prefill": "prefill_uneven", "decode": "decode_uneven"}
)
GENERATION_PASSES: tuple[PassName, ...] = (*UNEVEN, *UNEVEN.values())


def is_uneven(workload: Workload) -> bool:
    """Tell whether micro-batches of a job hold anything but sequences of one length, each with its own prompt."""
    lengths = (workload.prompt_tokens, workload.response_tokens)
    return workload.samples_per_prompt > 1 or not all(isinstance(each, int) for each in lengths)


class PassRunner(Protocol):
    """Run passes on this machine's devices, all of them busy as in a job."""

    def run(self, model_pass: ModelPass, repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat after a warm-up.

        Ranks that work together count once, by the slowest; ranks that run a copy each count each.
        """
        ...

    def held_bytes(self) -> int:
        """Return the most bytes that one of the processes has held on its device so far."""
        ...

    def loop_flops_per_second(self) -> float:
        """Return what the slowest device does in the fixed loop of `rlplan.executor.probing`."""
        ...
