"""What a worker holds before it holds a model: its libraries, its process group, their buffers."""

from __future__ import annotations

from profiles.probes.bench.contract import Settings
from profiles.sheets import load_model
from rlplan.probing import ModelPass, PassName, PassRunner

# Each loads code and lets libraries set up what they keep: models, attention, autograd, optimizer.
FIRST_PASSES: tuple[PassName, ...] = ("infer", "train", "optimizer", "prefill", "decode")
SMALLEST_MODEL = "tiny"


def context_bytes(runner: PassRunner, settings: Settings) -> int:
    """Return the bytes of a device that a worker takes with a model of next to none; 0 if unknown.

    The peak of a fresh worker on a core, after one pass of each kind of a model of about 1 MB. On a
    GPU, whose libraries do not count themselves, the device sheet's figure stays.
    """
    if settings.kind != "cpu":
        return 0
    model = load_model(SMALLEST_MODEL)
    for name in FIRST_PASSES:
        first = ModelPass(name=name, model=model, head="lm", precision=settings.precision)
        runner.run(first, 1)
    return runner.held_bytes()
