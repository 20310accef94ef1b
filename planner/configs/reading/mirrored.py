"""Keys of a program beside its framework's own, which it gives the framework when it starts."""

from dataclasses import replace

from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.versions import OF_FILE


def lay_mirrors(settings: Settings) -> None:
    """Give a framework's keys what a program's own say of the same.

    rLLM (rllm/trainer/verl/utils.py, sync_config): its own on the command line counts before the framework's there, and
    that before its own in a file, where it is more than nothing.
    """
    sheet, flat = settings.sheet, settings.flat
    for other, key in sheet.mirrors.items():
        given = flat.get(other)
        if given is None or not _counts(given, flat.get(key)):
            continue
        flat[key] = replace(given, older=other)
        del flat[other]
        switch, own = sheet.mirrored_switches.get(other), given.value
        if switch is None or (switch in flat and _is_typed(flat[switch])):
            continue
        if isinstance(own, int | float):
            flat[switch] = replace(given, value=own > 0, older=other)


def _counts(given: GivenValue, own: GivenValue | None) -> bool:
    """Tell whether a program's key counts before the framework's own."""
    if _is_typed(given):
        return True
    return given.value is not None and (own is None or not _is_typed(own))


def _is_typed(given: GivenValue) -> bool:
    """Tell whether a value stands on a command line."""
    return OF_FILE.search(given.where) is None
