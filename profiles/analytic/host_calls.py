"""What calls to other processes cost where no profile measured them."""

from typing import Final

from profiles.analytic.efficiencies import load_host_costs
from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate, Source

RULE_PREFIX: Final = "rule:"


def unmeasured_call(
    num_bytes: float, kind: str, device: str, rule_seconds: float | None
) -> Estimate:
    """Return the seconds of a call that passes `num_bytes`, or of one call of a reward rule.

    Args:
        device: Whose host it is, for the message.
        rule_seconds: What a job gives for its reward rule.

    Raises:
        MissingFactError: The kind is not known, or a rule's time was not given.
    """
    host = load_host_costs()
    if kind.startswith(RULE_PREFIX):
        if rule_seconds is None:
            name = kind.removeprefix(RULE_PREFIX)
            raise MissingFactError(
                f"the time of reward rule {name!r} is unknown on {device}: run "
                f"`rlplan profile` for this job, or give `rewards.function_seconds_per_sample`"
            )
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
