"""How long it takes to simulate environment workers on thousands of cores beside trainers.

    python benchmarks/environment_workers.py

prints CPU seconds of each system of `rlplan reproduce srl` on 32 trainers, for 100 training steps. The bar is
10 s for 15,000 environment workers.
"""

import time

from rlplan.evals.reproductions.srl import (
    INLINE,
    LARGE_INLINE,
    REMOTE,
    TRAINING_STEPS,
    play_workers,
    system_of,
)

TRAINERS = 32


def main() -> None:
    """Print one line a system."""
    for series in (INLINE, LARGE_INLINE, REMOTE):
        system = system_of(series, TRAINERS)
        begun = time.process_time()
        found = play_workers(system, TRAINING_STEPS)
        seconds = time.process_time() - begun
        environments = system.actors * system.ring_size
        print(
            f"{series}: {system.actors:,} actor workers with {environments:,} environments, "
            f"{TRAINING_STEPS} steps in {seconds:.2f} CPU seconds: {found.frames_per_second:,.0f} frames/s"
        )


if __name__ == "__main__":
    main()
