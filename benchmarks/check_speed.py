"""CPU seconds of `rlplan check` for frameworks' configurations, and of `rlplan --help`: each a process of its own.

    python benchmarks/check_speed.py verl:run.sh nemo-rl:grpo.yaml --repeats 3
    python benchmarks/check_speed.py verl:run.sh --beside ../other-checkout

Seconds are those that a process spends computing (user), the least of its repeats: others on the machine change them
least. With `--beside` another checkout takes turns, so that both see the same machine.
"""

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

GIVEN = ("--gpu", "h100-80gb-sxm", "--mean-response", "300")
START = "from rlplan_cli.main import main; main()"


def cpu_seconds(tree: Path, arguments: tuple[str, ...]) -> float:
    """Return the user CPU seconds of one command, run from a checkout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(
        [sys.executable, "-c", START, *arguments],
        cwd=tree,  # which stands first among the places of imports
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    """Print the least CPU seconds of each command in each checkout."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("configs", nargs="*", metavar="FRAMEWORK:FILE")
    reader.add_argument("--repeats", type=int, default=3)
    reader.add_argument("--beside", type=Path)
    given = reader.parse_args()
    trees = [Path(__file__).resolve().parents[1], *([given.beside] if given.beside else [])]
    commands: dict[str, tuple[str, ...]] = {"--help": ("--help",)}
    for each in given.configs:
        framework, file = each.split(":", 1)
        commands[Path(file).name] = ("check", framework, str(Path(file).resolve()), *GIVEN)
    for name, arguments in commands.items():
        least = [float("inf")] * len(trees)
        for _ in range(given.repeats):
            for place, tree in enumerate(trees):
                least[place] = min(least[place], cpu_seconds(tree.resolve(), arguments))
        print("  ".join(f"{seconds:6.2f} s" for seconds in least), f" {name}", flush=True)


if __name__ == "__main__":
    main()
