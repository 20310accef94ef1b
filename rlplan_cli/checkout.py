"""What a checkout has beside the product: `evals/`, the published tables and evaluations, which no wheel holds."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlplan.errors import UserError

if TYPE_CHECKING:
    from rlplan.planner.measured.reading import KnownTables

WHERE = (
    "in the folder evals/ of the sources of rlplan, which an installed wheel does not have: "
    "run the command of a checkout (`make setup`, or `pip install --editable .` there)"
)


def has_evals() -> bool:
    """Tell whether this is a checkout."""
    return find_spec("rlplan.evals") is not None


def need_evals(wanted: str) -> None:
    """Check that this is a checkout.

    Args:
        wanted: What the command needs of `evals`, for the message.

    Raises:
        UserError: It is none.
    """
    if not has_evals():
        raise UserError(f"{wanted} are {WHERE}")


def evals_module(name: str, wanted: str) -> Any:  # noqa: ANN401 -- a module, looked up by its name
    """Return a module of `evals`, which the product knows by its name alone.

    Args:
        wanted: What the command needs of it, for the message.

    Raises:
        UserError: This is no checkout.
    """
    need_evals(wanted)
    return import_module(f"rlplan.evals.{name}")


def known_tables() -> KnownTables:
    """Return all tables that can be read here: users' own, and in a checkout the published ones too."""
    from rlplan.planner.measured.reading import own_tables

    if has_evals():
        known: KnownTables = evals_module("reading", "published tables").all_tables()
        return known
    return own_tables(elsewhere=f"readers of published tables are {WHERE}")
