"""ROLL's device mappings, `list(range(0,8))` or `[0,1,2]`: which workers share GPUs, and which have their own."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlplan.errors import FileError
from rlplan.job import Role
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, RunPool

RANGE: Final = re.compile(r"list\(\s*range\(\s*(\d+)\s*,\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*\)")
LIST: Final = re.compile(r"(?:list\()?(\[[\d,\s]*\])\)?")
MOST: Final = 100_000
PART_NOTE: Final = "{} of the {} GPUs that train, forecast on all of them"
REST_NOTE: Final = (
    "generation on GPUs that train as well while none learns, forecast on the {} others alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hold where workers are.

    Attributes:
        pools: Those of roles, that in which the actor generates last.
        gpus: The highest device, and so the GPUs of the cluster.
        apart: Whether engines have GPUs of their own.
        doubts: What is forecast otherwise than it is placed, by setting.
    """

    pools: tuple[RunPool, ...]
    gpus: int
    apart: bool
    doubts: Mapping[str, str]

    def of(self, role: Role) -> RunPool:
        """Return the pool on which a role trains, or passes over sequences."""
        return next(each for each in self.pools if role in each.roles and each.name != ROLLOUT_POOL)


def devices_of(settings: Settings, name: str) -> frozenset[int]:
    """Return the devices of a worker; none where it says none.

    Raises:
        FileError: They are not understood.
    """
    value = settings.value(name)
    if value is None or value == "":
        return frozenset()
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return frozenset(value)
    found = _listed(str(value))
    if found is None:
        raise settings.refused(name, "is not understood", "list(range(0,8)) or [0,1,2]")
    return found


def _listed(text: str) -> frozenset[int] | None:
    """Return the devices that a text lists, as Python writes ranges and lists and sums of them; None where it does not."""
    devices = set[int]()
    for part in text.split("+"):
        span, listed = RANGE.fullmatch(part.strip()), LIST.fullmatch(part.strip())
        if span is not None:
            first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
            if last > MOST or step < 1:
                return None
            devices.update(range(first, last, step))
        elif listed is not None:
            devices.update(ast.literal_eval(listed[1]))
        else:
            return None
    return frozenset(devices)


def _judges(settings: Settings) -> frozenset[int]:
    """Return the devices on which models judge."""
    found = set(devices_of(settings, "judge_devices") | devices_of(settings, "judges_devices"))
    for key in settings.has("rewards.*.device_mapping"):
        found |= _listed(str(settings.given(key))) or frozenset()
    return frozenset(found)


def check_devices(settings: Settings) -> tuple[frozenset[int], frozenset[int]]:
    """Return the devices that train the actor, and those on which it generates.

    Raises:
        FileError: There are none of either.
    """
    found = list[frozenset[int]]()
    for name, what in (
        ("actor_devices", "trains on no GPU, as where only responses are generated"),
        ("rollout_devices", "generates on no GPU, as where texts or preferences are learnt from"),
    ):
        devices = devices_of(settings, name)
        if not devices:
            raise settings.refused(name, what, "list(range(0,8))")
        found.append(devices)
    return found[0], found[1]


def placement_of(settings: Settings, roles: tuple[Role, ...]) -> Placement:
    """Return the pools that devices amount to.

    Args:
        roles: Those that have models of their own, the actor first.

    Raises:
        FileError: No device trains or generates, or workers share GPUs in a way that pools cannot hold.
    """
    trains, generates = check_devices(settings)
    doubts: dict[str, str] = {}
    own: dict[Role, frozenset[int]] = {}
    beside: list[Role] = ["actor"]
    for role in roles[1:]:
        devices = devices_of(settings, f"{role}_devices") or trains
        if devices & trains:
            beside.append(role)
            if devices != trains:
                doubts[f"{role}_devices"] = PART_NOTE.format(
                    f"the {role} on {len(devices & trains)}", len(trains)
                )
        else:
            own[role] = devices
    pools = [RunPool(name=TRAIN_POOL, gpus=len(trains), roles=tuple(beside))]
    pools += [RunPool(name=role, gpus=len(each), roles=(role,)) for role, each in own.items()]
    rollout = _rollout(settings, trains, generates, own, doubts)
    every = trains.union(generates, *own.values(), _judges(settings))
    if rollout is None:
        pools.append(pools.pop(0))
    else:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=rollout, roles=("actor",)))
    return Placement(
        pools=tuple(pools), gpus=max(every) + 1, apart=rollout is not None, doubts=doubts
    )


def _rollout(
    settings: Settings,
    trains: frozenset[int],
    generates: frozenset[int],
    own: Mapping[Role, frozenset[int]],
    doubts: dict[str, str],
) -> int | None:
    """Return the GPUs of engines apart; None where they share those that train."""
    used = frozenset[int]().union(*own.values())
    if generates & used and (generates & trains or not generates - used):
        raise _shared(settings)
    rest = generates - trains - used
    if generates & used:
        doubts["rollout_devices"] = REST_NOTE.format(len(rest))
        return len(rest)
    if not generates & trains:
        return len(generates)
    if settings.number("ahead") > 0 and rest:
        doubts["rollout_devices"] = REST_NOTE.format(len(rest))
        return len(rest)
    if rest:
        raise _shared(settings)
    if generates != trains:
        doubts["rollout_devices"] = PART_NOTE.format(f"generation on {len(generates)}", len(trains))
    return None


def _shared(settings: Settings) -> FileError:
    problem = "shares GPUs with workers that do not share them with each other, or has more beside, which no pool holds"
    return settings.refused("rollout_devices", problem, "the GPUs of actor_train, or others")
