"""Numbers of GPUs and of tokens as users type them: `8xh100`, `2x8xh100`, `H100:16`, `8k`."""

from __future__ import annotations

import re
from typing import NamedTuple

import typer

from rlplan.errors import FileError

TIMES = r"\s*[xX*\u00d7]\s*"
GPUS_FIRST = re.compile(rf"(?:(\d{{1,5}}){TIMES})?(\d{{1,5}}){TIMES}(\D\S*)")
GPUS_LAST = re.compile(rf"(\D[^\s:]*)\s*:\s*(?:(\d{{1,5}}){TIMES})?(\d{{1,5}})")
NUMBER_ALONE = re.compile(rf"(?:(\d{{1,5}}){TIMES})?(\d{{1,5}})")
GPUS_ALLOWED = "such as 8xh100, 2x8xh100 (nodes, GPUs of a node) or h100:16"

# Contexts are counted in powers of two: 8k is 8,192, as 8K is in vLLM, whose 8k is 8,000. Commas part thousands alone.
TOKENS = re.compile(r"(\d{1,15}(?:\.\d+)?|\d{1,3}(?:,\d{3}){1,4}|\.\d+)\s*([kKmM]?)")
TOKENS_OF = {"": 1, "k": 1024, "m": 1024**2}


class GivenGpus(NamedTuple):
    """Hold GPUs as they were typed.

    Attributes:
        per_node: Of a node, where nodes were typed too; None takes the usual node.
        device: Empty where the number stands alone.
    """

    number: int
    per_node: int | None
    device: str


def gpus_of(text: str, *, alone: bool = False) -> GivenGpus:
    """Return the GPUs that a text names.

    Args:
        alone: Whether a number without a type is allowed.

    Raises:
        FileError: It names none.
    """
    given = text.strip()
    nodes: str | None
    if found := GPUS_FIRST.fullmatch(given):
        nodes, each, device = found.groups()
    elif found := GPUS_LAST.fullmatch(given):
        device, nodes, each = found.groups()
    elif alone and (found := NUMBER_ALONE.fullmatch(given)):
        (nodes, each), device = found.groups(), ""
    else:
        found, nodes, each, device = None, None, "0", ""
    number = int(each) * int(nodes or 1)
    if found is None or not number:
        allowed = f"{GPUS_ALLOWED}{', or 16' if alone else ''}"
        raise FileError("--gpus", "is no number of GPUs", value=text, allowed=allowed)
    return GivenGpus(number, int(each) if nodes else None, device)


def gpus_with_type(gpus: str, gpu: str | None, *, alone: bool = False) -> GivenGpus:
    """Return the GPUs of `--gpus`, whose type may stand in `--gpu`.

    Args:
        alone: Whether a number without any type is allowed.

    Raises:
        FileError: They name no GPUs, no type where one is asked for, or two.
    """
    given = gpus_of(gpus, alone=True)
    if given.device and gpu:
        problem = "names a type beside that of --gpus"
        raise FileError("--gpu", problem, value=gpu, allowed="one of them")
    device = given.device or gpu or ""
    if not device and not alone:
        allowed = f"{GPUS_ALLOWED}, or their type beside: --gpu h100"
        raise FileError("--gpus", "names no type of GPUs", value=gpus, allowed=allowed)
    return given._replace(device=device)


def tokens_of(text: str) -> float:
    """Return the tokens of a text such as `8192`, `8k` (8,192) or `1.5k` (1,536).

    Raises:
        typer.BadParameter: It is no number of tokens, or none above zero.
    """
    found = TOKENS.fullmatch(str(text).strip())
    tokens = float(found[1].replace(",", "")) * TOKENS_OF[found[2].lower()] if found else 0.0
    if not tokens > 0:
        raise typer.BadParameter(f"{text!r} is no number of tokens; allowed: such as 8192 or 8k")
    return tokens


def whole_tokens_of(text: str) -> int:
    """Return whole tokens, as `tokens_of`.

    Raises:
        typer.BadParameter: They are not whole.
    """
    tokens = tokens_of(text)
    if not tokens.is_integer():
        raise typer.BadParameter(f"{text!r} is no whole number of tokens; allowed: such as 8k")
    return int(tokens)


def number_of_gpus(text: str) -> int:
    """Return a number of GPUs whose type is known elsewhere: `16` or `2x8`.

    Raises:
        typer.BadParameter: It is none.
    """
    found = NUMBER_ALONE.fullmatch(str(text).strip())
    number = int(found[1] or 1) * int(found[2]) if found else 0
    if not number:
        raise typer.BadParameter(f"{text!r} is no number of GPUs; allowed: such as 16 or 2x8")
    return number
