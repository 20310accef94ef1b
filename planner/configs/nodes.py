"""Find which GPUs, and how many a node has, where a framework's keys do not say it: as a script asks Slurm or a cloud for them."""

import re
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

# `#SBATCH --gres=gpu:h200:8`, `--gpus-per-node=h100:8`, `-G a100:4`; SkyPilot's `accelerators: H100:8`; Modal's `gpu="H100:8"`.
_ASKED: Final = (
    re.compile(r"^#SBATCH\s.*?--gres[=\s](?:[\w.:-]+,)*gpu:([A-Za-z][\w.-]*)(?::\d+)?"),
    re.compile(r"^#SBATCH\s.*?(?:--gpus(?:-per-node|-per-task)?[=\s]|-G\s*)([A-Za-z][\w.-]*):\d+"),
    re.compile(r"^\s+accelerators:\s*[\"']?\{?\s*([A-Za-z][\w.-]*)"),
    re.compile(r"^\s*gpu\s*=\s*[\"']([A-Za-z][\w.-]*)(?::\d+)?[\"']\s*,?\s*$"),
)
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
        for named in filter(None, (each.search(row) for each in _ASKED)):
            sheet = canonical_name("devices", named[1])
            if sheet in device_names():
                found.setdefault(sheet, f"{script}:{line}")
    return next(iter(found.items())) if len(found) == 1 else None
