"""What references in a configuration (`${a.b}`, `${mul:${a.b},2}`) stand for, as OmegaConf has them.

OmegaConf follows them, and takes longer to make a tree of a whole configuration than all else that is read of it. So it is
given what references reach alone, where that is plain; and a reference to a number or word is looked up.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from warnings import catch_warnings, simplefilter

Path = tuple[str, ...]

# What NeMo-RL's and verl's configurations compute with.
RESOLVERS = {
    "mul": lambda *values: math.prod(values),
    "add": lambda *values: sum(values),
    "sub": lambda left, right: left - right,
    "div": lambda left, right: left // right if left % right == 0 else left / right,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}
# A reference to a place, from the top or (`${.b}`) from what it stands in, and a call whose arguments hold none.
PLACE: Final = re.compile(r"\$\{(\.?)([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
CALL: Final = re.compile(rf"\$\{{(?:{'|'.join((*RESOLVERS, 'oc.env'))}):[^${{}}]*\}}")
REFERS, ESCAPES = "${", "\\"
# Stands where a reference was: part of no place and of no call's name.
READ: Final = "\0"
# What has to be given elsewhere.
MISSING: Final = "???"
UNKNOWN: Final = object()


@dataclass(slots=True, kw_only=True)
class References:
    """Follow the references of a configuration.

    Attributes:
        data: Its mappings, references and all.
        paths: Where leaves with references stand.
    """

    data: dict[str, Any]
    paths: Sequence[Path]
    _tree: Any = field(default=None, init=False)

    def followed(self, path: Path, value: object) -> object:
        """Return what a leaf stands for.

        Raises:
            LookupError: What it refers to is not known.
        """
        plain = self._looked_up(path, value)
        if plain is not UNKNOWN:
            return plain
        from omegaconf import OmegaConf  # noqa: PLC0415 -- only where a reference is more than a place
        from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

        if self._tree is None:
            self._tree = _tree_of(self._reached() or self.data)
        try:
            with catch_warnings():  # of what resolvers take as empty: `${oc.env:NAME,}`
                simplefilter("ignore")
                node = self._tree
                for part in path:
                    node = node[part]
                return (
                    OmegaConf.to_container(node, resolve=True)
                    if OmegaConf.is_config(node)
                    else node
                )
        except OmegaConfBaseException as error:
            raise LookupError(str(value)) from error

    def _looked_up(self, path: Path, value: object) -> object:
        """Return the number or word that a leaf is or refers to; `UNKNOWN` where it is more than that."""
        seen = set[Path]()
        while isinstance(value, str) and REFERS in value and ESCAPES not in value:
            place = PLACE.fullmatch(value)
            if place is None or path in seen:
                return UNKNOWN
            seen.add(path)
            named = _named(path, *place.groups())
            path, value = _nearest(self.data, named)
            if path != named:
                return UNKNOWN
        plain = isinstance(value, str) and value != MISSING and ESCAPES not in value
        return value if plain or value is None or isinstance(value, int | float) else UNKNOWN

    def _reached(self) -> dict[str, Any] | None:
        """Return the data without what no reference reaches; None where a reference is not plain."""
        found: dict[str, Any] = {}
        seen: set[Path] = set()
        left = list(self.paths)
        while left:
            at, node = _nearest(self.data, left.pop())
            if at in seen or not at:
                continue
            seen.add(at)
            places = _places_of(at, node)
            if places is None:
                return None
            left += places
            *parents, last = at
            inner = found
            for part in parents:
                inner = inner.setdefault(part, {})
            inner[last] = node
        return found


def _nearest(data: Mapping[str, Any], path: Path) -> tuple[Path, Any]:
    """Return how far a path leads into mappings, and what stands there."""
    node: Any = data
    for depth, part in enumerate(path):
        if not isinstance(node, dict) or part not in node:
            return path[:depth], node
        node = node[part]
    return path, node


def _named(path: Path, start: str, name: str) -> Path:
    """Return the place that a reference of a leaf names."""
    return (*(path[:-1] if start else ()), *name.split("."))


def _places_of(path: Path, node: object) -> list[Path] | None:
    """Return the places that a value's references name; None where one of them names none in so many words."""
    found: list[Path] = []
    for at, text in _texts(path, node):
        if REFERS not in text:
            continue
        left, before = text, ""
        while left != before:
            named = PLACE.findall(left)
            if at is None and any(start for start, _ in named):
                return None
            found += [_named(at or (), *each) for each in named]
            left, before = CALL.sub(READ, PLACE.sub(READ, left)), left
        if REFERS in left or ESCAPES in text:
            return None
    return found


def _texts(path: Path | None, node: object) -> Iterator[tuple[Path | None, str]]:
    """Yield the words in a value and where they stand; None for a place in a list."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, each in node.items():
            yield from _texts(None if path is None else (*path, key), each)
    elif isinstance(node, list | tuple):
        for each in node:
            yield from _texts(None, each)


def _tree_of(data: dict[str, Any]) -> Any:  # noqa: ANN401 -- OmegaConf's
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    for name, function in RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, function)
    try:
        return OmegaConf.create(data)
    except OmegaConfBaseException:
        return OmegaConf.create(_readable(data))


def _readable(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the leaves whose references cannot be read: `${a.` is broken off."""
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found[key] = _readable(value)
            continue
        with suppress(OmegaConfBaseException):
            OmegaConf.create({key: value})
            found[key] = value
    return found
