"""Tasks of SkyPilot: YAML files whose `run` is a script, with variables and the machines that it is given."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import yaml

# A key at the left edge whose text follows below it.
BLOCK: Final = re.compile(r"^run:\s*[|>][+-]?\s*$")
# Keys whose lists name machines of which one will do.
ALTERNATIVES: Final = ("any_of", "ordered")
# `H100:8`, or a list or mapping of such; without a number it is one GPU.
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
    counts = set(_counts(held.get("resources")))
    if len(counts) == 1 and None not in counts:
        yield f"export SKYPILOT_NUM_GPUS_PER_NODE={counts.pop()}"


def _counts(resources: object) -> Iterator[int | None]:
    """Yield the GPUs of a node for each of the machines that a task may have; None where a machine says none that is known."""
    if not isinstance(resources, dict):
        return
    several = next((resources[key] for key in ALTERNATIVES if key in resources), None)
    if isinstance(several, list):
        for each in several:
            own = each if isinstance(each, dict) else {}
            wanted = own.get("accelerators", resources.get("accelerators"))
            yield from _of_accelerators(wanted)
    else:
        yield from _of_accelerators(resources.get("accelerators"))


def _of_accelerators(wanted: object) -> Iterator[int | None]:
    if isinstance(wanted, dict):
        named: list[object] = [f"{name}:{count or 1}" for name, count in wanted.items()]
    else:
        named = list(wanted) if isinstance(wanted, list) else [wanted]
    for each in named:
        found = ACCELERATORS.fullmatch(each) if isinstance(each, str) else None
        yield None if found is None else int(found[1] or 1)
