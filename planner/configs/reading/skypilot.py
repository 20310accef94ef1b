"""Tasks of SkyPilot: YAML files whose `run` is a script, with variables and the machines that it is given."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import yaml

# A key at the left edge whose text follows below it.
BLOCK: Final = re.compile(r"^run:\s*[|>][+-]?\s*$")
# `H100:8`, or a mapping of one such; without a number it is one GPU.
ACCELERATORS: Final = re.compile(r"[\w.\-]+(?::(\d+))?")


def script_of_task(text: str) -> str | None:
    """Return the script that a task of SkyPilot runs, each line where it stands in the file; None where it is none.

    In front of it stand the task's variables (`envs`), which those of the environment go over, and what SkyPilot says of
    its machines.
    """
    lines = text.splitlines()
    place = next((at for at, line in enumerate(lines) if BLOCK.match(line)), None)
    if place is None:
        return None
    try:
        held = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    if not isinstance(held, dict) or not isinstance(held.get("run"), str):
        return None
    sets = "; ".join(_variables(held))
    return "\n".join([*[""] * place, sets, *held["run"].splitlines()]) + "\n"


def _variables(held: dict[str, Any]) -> Iterator[str]:
    given = held.get("envs")
    for name, value in given.items() if isinstance(given, dict) else ():
        if value is not None and str(name).isidentifier():
            yield f"export {name}=${{{name}:-{shlex.quote(str(value))}}}"
    nodes = held.get("num_nodes", 1)
    if isinstance(nodes, int):
        yield f"export SKYPILOT_NUM_NODES={nodes}"
    resources = held.get("resources")
    wanted = resources.get("accelerators") if isinstance(resources, dict) else None
    named = (
        ":".join(map(str, *wanted.items()))
        if isinstance(wanted, dict) and len(wanted) == 1
        else wanted
    )
    found = ACCELERATORS.fullmatch(named) if isinstance(named, str) else None
    if found is not None:
        yield f"export SKYPILOT_NUM_GPUS_PER_NODE={found[1] or 1}"
