"""What becomes of a key that is changed: what the tests that no key is swallowed have in common."""


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
