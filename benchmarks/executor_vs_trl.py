"""Compare the executor's throughput with TRL's trainers on the same cores, model, prompts and lengths.

    make bench-trl          both algorithms, pairs of short turns: about four minutes
    python benchmarks/executor_vs_trl.py [--algorithms grpo ppo] [--pairs 8] [--turn 3] [--cores 2]

TRL lives in an environment of its own (`.venv-trl`, which `make bench-trl` sets up) and runs in a
process of its own (`trl_side.py`). Both sides are warmed up once; then turns alternate: some
iterations of TRL, as many of ours, so that whatever else the machine does meets both. While one
runs, the other waits: TRL at its stdin, our workers for their next call. The page is
`reports/published/executor.md` (`executor_page.py`).

Both do the same work. The byte tokenizer's end token has an id beyond the model's vocabulary, so no
response ends early; prompts have one length, so neither side pads; fp32, AdamW, one update of the
whole batch, the same loss. TRL uses the cores as threads of one process, the executor as the
devices of the plan that the search chooses. An iteration counts whole: from the end of the one
before to its own end, with all that either side does in between.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from executor_page import cores_in_use, publish_throughput
from trl_setting import (
    PROMPTS,
    RESPONSE_TOKENS,
    SAMPLES,
    planned,
    product_flops,
    trl_setting,
    write_prompts,
    write_tokenizer,
)

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.plan import Plan

ROOT = Path(__file__).parents[1]
SIDE = Path(__file__).parent / "trl_side.py"
TRL_VENV = ROOT / ".venv-trl"
SIDE_OF_MATRIX, RATE_REPEATS = 2048, 10
# TRL's last release with a PPO trainer; it borrows everything else from the environment.
TRL_OF_PPO = TRL_VENV / "trl-ppo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Hold a comparison: by pair, the median seconds of an iteration of each side.

    Attributes:
        load: Cores that other processes used before.
        product_flops: Operations of an iteration's matrix products.
        flops_per_second: At which all cores multiplied large matrices, just before.
    """

    algorithm: str
    versions: dict[str, str]
    cores: int
    layout: str
    tokens: int
    turn: int
    load: float
    product_flops: float
    flops_per_second: float
    pairs: list[dict[str, float]] = field(default_factory=list)


class TrlSide:
    """Run TRL in its own process, turn by turn; a context manager that ends it."""

    def __init__(self, setting: dict[str, Any], python: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {
            "OMP_NUM_THREADS": str(setting["threads"]),
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
        }
        if setting["algorithm"] == "ppo":
            environment["PYTHONPATH"] = str(TRL_OF_PPO)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with this object
        self._process = subprocess.Popen(
            [python, SIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self.versions: dict[str, str] = self._ask(json.dumps(setting))

    def turn(self, iterations: int) -> list[float]:
        """Run iterations; return the seconds of each."""
        seconds: list[float] = self._ask(str(iterations))["seconds"]
        return seconds

    def _ask(self, line: str) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"TRL ended:\n{self._log.read()[-4000:]}")
        values: dict[str, Any] = json.loads(answer)
        return values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class Alternation:
    """Let TRL have its turn before each of ours, from the executor's own progress calls.

    Attributes:
        ours: Seconds of our iterations, warm-up included.
        theirs: Seconds of TRL's iterations, by pair.
    """

    def __init__(self, trl: TrlSide, *, pairs: int, turn: int, warmup: int) -> None:
        self._trl, self._turn, self._warmup = trl, turn, warmup
        self._starts = {warmup + pair * turn for pair in range(pairs)}
        self._since = 0.0
        self.ours: list[float] = []
        self.theirs: list[list[float]] = []

    def __call__(self, done: int, _: int, __: str) -> None:
        """Note the iteration that ended, and let TRL go on where a pair begins."""
        if done:
            self.ours.append(time.perf_counter() - self._since)
        if done == 0:
            self._trl.turn(self._warmup)
        if done in self._starts:
            self.theirs.append(self._trl.turn(self._turn))
        self._since = time.perf_counter()

    def pairs(self) -> list[dict[str, float]]:
        """Return of each pair the median seconds of both sides, and how often theirs holds ours."""
        found = []
        for pair, theirs in enumerate(self.theirs):
            first = self._warmup + pair * self._turn
            ours = statistics.median(self.ours[first : first + self._turn])
            trl = statistics.median(theirs)
            found.append({"trl_seconds": trl, "seconds": ours, "ratio": trl / ours})
        return found


def main() -> None:
    """Compare, and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["grpo", "ppo"])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--turn", type=int, default=3, help="iterations of a side in a pair")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--trl-python", type=Path, default=TRL_VENV / "bin" / "python")
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    options = parser.parse_args()
    load = cores_in_use()  # before our own work adds to it
    for algorithm in options.algorithms:
        found = compared(algorithm, options, load)
        publish_throughput(asdict(found), options.out)
        ratio = statistics.median(pair["ratio"] for pair in found.pairs)
        print(f"{algorithm}: {ratio:.2f} times TRL {found.versions['trl']}", flush=True)


def compared(algorithm: str, options: argparse.Namespace, load: float) -> Compared:
    """Run both sides in turns and return what they took."""
    with tempfile.TemporaryDirectory(prefix="rlplan-trl-") as name:
        folder = Path(name)
        texts = write_prompts(folder)
        write_tokenizer(folder / "tokenizer")
        plan = planned(algorithm, folder, options.cores)
        setting = trl_setting(plan.job, texts, folder, options.cores)
        rate = multiplying_rate(options.cores)
        versions, pairs = in_turns(plan, setting, folder, options, RESPONSE_TOKENS)
        return Compared(
            algorithm=algorithm,
            versions=versions,
            cores=options.cores,
            layout=shown_layout(plan),
            tokens=PROMPTS * SAMPLES * RESPONSE_TOKENS,
            turn=options.turn,
            load=load,
            product_flops=product_flops(algorithm),
            flops_per_second=rate,
            pairs=pairs,
        )


def in_turns(
    plan: Plan,
    setting: dict[str, Any],
    folder: Path,
    options: argparse.Namespace,
    response_tokens: int,
) -> tuple[dict[str, str], list[dict[str, float]]]:
    """Run both sides in turns; return the versions of what they stand on, and the pairs of seconds."""
    with TrlSide(setting, options.trl_python) as trl:
        turns = Alternation(trl, pairs=options.pairs, turn=options.turn, warmup=options.warmup)
        iterations = options.warmup + options.pairs * options.turn
        run = folder / "run"
        execute(plan, run, iterations=iterations, seed=0, folder=folder, progress=turns)
        check_lengths(run, response_tokens)
        return trl.versions | own_versions(), turns.pairs()


def multiplying_rate(cores: int) -> float:
    """Return the operations per second of fp32 products of large matrices on so many cores."""
    torch.set_num_threads(cores)
    left, right = torch.randn(2, SIDE_OF_MATRIX, SIDE_OF_MATRIX)
    best = float("inf")
    for _ in range(RATE_REPEATS):
        start = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - start)
    return 2.0 * SIDE_OF_MATRIX**3 / best


def check_lengths(run: Path, response_tokens: int) -> None:
    """Refuse a run in which a response ended early."""
    lengths = {row["response_tokens"] for row in read_metrics(run)}
    if lengths != {float(response_tokens)}:
        raise RuntimeError(f"responses have {sorted(lengths)} tokens, not {response_tokens}")


def own_versions() -> dict[str, str]:
    """Return the versions of what both sides stand on."""
    return {"torch": importlib.metadata.version("torch")}


def shown_layout(plan: Plan) -> str:
    """Return a plan's layout in a few words."""
    update, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    return (
        f"{plan.placement}; updates dp {update.dp} tp {update.tp} pp {update.pp}, micro-batches of"
        f" {update.micro_batch}; generation dp {generate.dp} tp {generate.tp}"
    )


if __name__ == "__main__":
    main()
