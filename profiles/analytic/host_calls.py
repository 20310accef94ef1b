"""What calls to other processes cost where no profile measured them."""

from typing import Final

from profiles.analytic.efficiencies import load_host_costs
from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate, Source

RULE_PREFIX: Final = "rule:"


def unmeasured_call(num_bytes: float, kind: str, rule_seconds: float | None) -> Estimate:
    """Return the seconds of a call that passes `num_bytes`, or of one call of a reward rule.

    Args:
        rule_seconds: What a job gives for its reward rule; None takes a usual rule's, which
            forecasts say among their assumptions.

    Raises:
        MissingFactError: The kind is not known.
    """
    host = load_host_costs()
    if kind.startswith(RULE_PREFIX):
        if rule_seconds is None:
            rule_seconds = host.rule_call_seconds.value
        return Estimate(rule_seconds, rule_seconds * host.spread.value, Source.DATASHEET)
    fixed = {
        "actor_call": host.actor_call_seconds,
        "object_fetch": host.object_fetch_seconds,
        "process_start": host.process_start_seconds,
    }
    if kind not in fixed:
        raise MissingFactError(
            f"no cost is known for a call of kind {kind!r}; known: {', '.join(fixed)}, "
            f"{RULE_PREFIX}<name>"
        )
    seconds = fixed[kind].value + num_bytes / host.object_bytes_per_second.value
    return Estimate(seconds, seconds * host.spread.value, Source.DATASHEET)
