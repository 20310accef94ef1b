"""Find which GPUs, and how many a node has, where a framework's keys do not say it: as a script asks Slurm or a cloud for them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.configuration import script_text
from rlplan.planner.configs.reading.scripts import SCRIPTS
from rlplan.planner.configs.run import Run
from rlplan.planner.configs.shell.script import slurm_variables
from rlplan.profiles.catalog import device_names
from rlplan.profiles.sheets import canonical_name

# `#SBATCH --gres=gpu:h200:8`, `--gpus-per-node=h100:8`, `-G a100:4`.
_OF_SLURM: Final = (
    re.compile(r"^#SBATCH\s.*?--gres[=\s](?P<all>(?:[\w.:-]+,)*gpu:[A-Za-z][\w.:,-]*)"),
    re.compile(
        r"^#SBATCH\s.*?(?:--gpus(?:-per-node|-per-task)?[=\s]|-G\s*)(?P<all>[A-Za-z][\w.-]*:\d+)"
    ),
)
# SkyPilot's `accelerators: H100:8`, one or several of which it takes any; Modal's `gpu="H100:8"`.
_OF_CLOUDS: Final = (
    re.compile(r"^\s+accelerators:\s*(?P<all>[\[{\"'A-Za-z][^#]*)"),
    re.compile(r"^\s*gpu\s*=\s*[\"'](?P<all>[A-Za-z][\w.-]*(?::\d+)?)[\"']\s*,?\s*$"),
)
# A type among what is asked for, not the word before it.
_TYPE: Final = re.compile(r"(?<![\w.-])(?!gpu\b)[A-Za-z][\w.-]*")
# What clouds mean where they do not say how large: SkyPilot's catalog has A100-80GB beside it, and modal.gpu says it.
_OF_FORTY: Final = {"A100": "a100-40gb"}
ON_NODE: Final = "SLURM_GPUS_ON_NODE"


def with_nodes_of_slurm(run: Run, script: Path) -> Run:
    """Return a run with the GPUs of a node that `#SBATCH` lines ask for, where its framework leaves them open."""
    if run.least_node is None or script.suffix not in {*SCRIPTS, ""} or not script.is_file():
        return run
    asked = slurm_variables(script_text(script)).get(ON_NODE)
    if asked is None or int(asked.value) < run.least_node:
        return run
    note = f"nodes of {asked.value} GPUs, as #SBATCH asks for ({script}:{asked.line})"
    return replace(run, asked_node=int(asked.value), notes=(*run.notes, note))


def asked_gpu(script: Path) -> tuple[str, str] | None:
    """Return the type of the GPUs that a script asks for, as a sheet calls it, and where; None where it names none, or several.

    A name that no sheet has, such as a partition's own, tells nothing.
    """
    if not script.is_file():
        return None
    try:
        rows = text_of(script).splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found = dict[str, str]()
    for line, row in enumerate(rows, 1):
        for named in _types_in(row):
            sheet = canonical_name("devices", named)
            if sheet in device_names():
                found.setdefault(sheet, f"{script}:{line}")
    return next(iter(found.items())) if len(found) == 1 else None


def _types_in(row: str) -> Iterator[str]:
    """Yield the types of GPUs that a line asks for."""
    kinds: tuple[tuple[tuple[re.Pattern[str], ...], Mapping[str, str]], ...] = (
        (_OF_SLURM, {}),
        (_OF_CLOUDS, _OF_FORTY),
    )
    for patterns, meant in kinds:
        for found in filter(None, (each.search(row) for each in patterns)):
            for named in _TYPE.findall(found["all"]):
                yield meant.get(named.upper(), named)
