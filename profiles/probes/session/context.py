"""What a worker holds before it holds a model: its libraries, its process group, their buffers."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.probes.bench.contract import Settings
from profiles.sheets import load_model
from rlplan.probing import GENERATION_PASSES, ModelPass, PassName, PassRunner
from rlplan.units import KIB, MIB

# Each loads code and lets libraries set up what they keep: models, attention, autograd, optimizer.
OF_ONE_RANK: tuple[PassName, ...] = ("infer", "train", "optimizer", *GENERATION_PASSES)
OF_TWO_RANKS: tuple[PassName, ...] = ("infer", "train")
# What calls hand over: through the controller's buffers, and through memory that workers share.
PAYLOADS: dict[PassName, int] = {"call": 4 * KIB, "fetch": MIB}
SMALLEST_MODEL = "tiny"
# As large as a small job's micro-batch: what the allocator keeps for its tensors is counted here and
# with the job's own, so that a forecast errs on the safe side, by the activations of next to nothing.
SEQUENCES, TOKENS = 8, 16


def context_bytes(runner: PassRunner, settings: Settings) -> int:
    """Return the bytes of a device that a worker takes with a model of next to none; 0 if unknown.

    The peak of a fresh worker on a core, after everything that a run does once, with a model of about
    1 MB: passes of one rank and of two, reductions of gradients, calls, payloads and syncs of weights.
    On a GPU, whose libraries do not count themselves, the device sheet's figure stays.
    """
    if settings.kind != "cpu":
        return 0
    for first in _first_passes(settings):
        runner.run(first, 1)
    return runner.held_bytes()


def _first_passes(settings: Settings) -> Iterator[ModelPass]:
    def of(name: PassName, **sizes: int) -> ModelPass:
        model = load_model(SMALLEST_MODEL)
        return ModelPass(name=name, model=model, head="lm", precision=settings.precision, **sizes)

    for name in OF_ONE_RANK:
        yield of(name, sequences=SEQUENCES, tokens=TOKENS)
    for name, num_bytes in PAYLOADS.items():
        yield of(name, tokens=num_bytes)
    if settings.devices > 1:
        yield of("weight_sync")
        yield of("gradient_reduction", dp=2)
        for name in OF_TWO_RANKS:
            yield of(name, tp=2, sequences=SEQUENCES, tokens=TOKENS)
