"""Find how many GPUs a node has where a framework's keys do not say it: as the script's own lines ask Slurm for them."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from rlplan.planner.configs.reading.configuration import script_text
from rlplan.planner.configs.reading.scripts import SCRIPTS
from rlplan.planner.configs.run import Run
from rlplan.planner.configs.shell.script import slurm_variables

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
