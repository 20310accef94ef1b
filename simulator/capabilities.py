"""What the simulator has no playing for, of what valid plans ask for, by name."""

from collections.abc import Iterator

from rlplan.errors import CapabilityError
from rlplan.plan import FLOWS, WHOLE_BATCH_MODES, Mode, Plan
from rlplan.rules.rule import Capability, refuse_first
from rlplan.workload import Workload

HERE = "the simulator"
DROPPED_EPISODES = Capability("more episodes begun than are learnt from")
OVER_SAMPLED_STREAMS = Capability(
    "more responses of a prompt than are learnt from, handed on one by one"
)


def check_played(plan: Plan, file: str = "plan") -> None:
    """Refuse what has no playing.

    Args:
        file: What to call the plan in messages.

    Raises:
        CapabilityError: Names the file, what is lacked, and the field that asks for it.
    """
    refuse_first(_lacks(plan), file)


def dropped_episodes(work: Workload) -> dict[str, float]:
    """Return what would drop episodes, by the field that says so: whatever the plan, that is not played."""
    return work.begun_beyond if work.environments else {}


def over_samples_streams(work: Workload, mode: Mode) -> bool:
    """Tell whether samples of a prompt would be dropped while responses stream, which is not played."""
    return FLOWS[mode].by_sample and work.over_sampling > 1


def _lacks(plan: Plan) -> Iterator[CapabilityError]:
    work = plan.job.workload
    for name, value in dropped_episodes(work).items():
        field, instead = f"job.workload.{name}", "it plays all that begin: 1"
        yield DROPPED_EPISODES.lacked_by(HERE, field, value, instead)
    if over_samples_streams(work, plan.mode):
        modes = " and ".join(WHOLE_BATCH_MODES)
        instead = f"it drops samples of a prompt in modes {modes}, in others none: 1"
        field = "job.workload.over_sampling"
        yield OVER_SAMPLED_STREAMS.lacked_by(HERE, field, work.over_sampling, instead)
