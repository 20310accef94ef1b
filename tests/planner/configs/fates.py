"""What becomes of a key that is changed: what the tests that no key is swallowed have in common."""

from rlplan.errors import UserError
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.reading.sheet import spelled


def outcome(found, key, before):
    """Return what becomes of a key of an import: idle where nothing reads it, empty where that is not seen.

    Args:
        before: The job and plan without it.
    """
    keys = found.keys
    said = (keys.not_modelled, keys.changes_work, keys.unknown)
    lists = (keys.mapped, keys.without_influence, *said)
    assert any(key in each for each in lists), f"{key} is in no list"
    if any(key in each for each in said):
        return "reported"
    if (found.job, found.draft) != before:
        return "acts"
    if any(f"{key} has no effect" in note for note in found.notes):
        return "reported"
    return "" if key in keys.mapped else "idle"


def first_fate(outcomes):
    """Return the first of the outcomes of changes to one key that shows what becomes of it; they are tried as needed.

    A refusal counts where nothing else does: another value, or another configuration, may show more.
    """
    seen = "swallowed"
    for found in outcomes:
        if found in {"acts", "reported"}:
            return found
        seen = found if found == "refused" else seen
    return seen


def mapped_keys(sheet):
    """Return the keys that settings read: those whose changes have to be seen; what becomes of the others is a word."""
    told = {*sheet.harmless(), *(key for section in (sheet.not_modelled, sheet.changes_work)
                                 for each in section for key in spelled(each, sheet.roles))}  # fmt: skip
    read = (key for each in sheet.every_setting() for key in (*each.keys, *each.over))
    return [key for key in dict.fromkeys(read) if key not in told]


def fate(framework, key, values, bases, options, before):
    """Return what becomes of a key in the first base, and with the first value, that show it.

    Args:
        bases: Words of a command line, or of a file and what follows it, by name.
        before: The job and plan of each base, without the key.
    """

    def told(name, value):
        try:
            found = imported(framework, [*bases[name], f"{key}={value}"], options)
        except UserError as error:
            said = str(error)
            return "refused" if key in said and "is no whole number" not in said else ""
        return outcome(found, key, before[name])

    return first_fate(told(name, value) for name in bases for value in values)


def imports_of(framework, bases, options):
    """Return the job and plan of each base as it is."""
    found = {name: imported(framework, words, options) for name, words in bases.items()}
    return {name: (each.job, each.draft) for name, each in found.items()}


def usual_values(sheet, key, default):
    """Return values that a key may be changed to: words that its settings know, and what is near its default."""
    meant = [
        word
        for each in sheet.every_setting()
        if key in (*each.keys, *each.over)
        for word in each.values
    ]
    if isinstance(default, bool):
        return [not default, default]
    if isinstance(default, int | float):
        return [default * 2 or 1, default / 2, 4, 64, 0.25]
    return [*meant, 2, 4, 3000, True, 0.5, "Qwen/Qwen2.5-7B", "another_word"]
