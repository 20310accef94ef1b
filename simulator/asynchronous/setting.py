"""What is played: how much is begun, taken and learnt from, and how much of it stands for the whole."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import parts_of_updates, rounds_together
from rlplan.framework import FrameworkSheet
from rlplan.plan import InFlight, Plan
from rlplan.rules.layouts import divisors
from rlplan.simulator.placed import PlacedTask
from rlplan.workload import Workload, mean_length

# Sequences, or turns of episodes, of one playing, about half a second of it: where iterations have more, fewer
# replicas stand for all, each with its share. `tests/simulator/test_asynchronous.py` says how little that changes.
PLAYED_SEQUENCES = 12_000
# Fewer would be few enough for chance in their order to show.
LEAST_SEQUENCES = 512
LEAST_ITERATIONS = 8
# Sequences, or turns of episodes, whose iterations are counted at the least where iterations overlap: whether training
# waits in one of them hangs on those before. Of 64 responses an iteration, eight gave 0.94 to 1.15 s where lengths
# differed by 2 %, and 64 of them 1.05 to 1.16 s.
COUNTED_SEQUENCES = 4_096


class Effort(NamedTuple):
    """Say how much of a stream is played.

    Attributes:
        sequences: Of one playing, about, as `PLAYED_SEQUENCES` has them.
        iterations: That are counted at the least where iterations overlap.
        counted_sequences: Whose iterations are counted at the least there.
        spread_fraction: By how much less playing moves an iteration's length, one sigma.
    """

    sequences: int
    iterations: int
    counted_sequences: int
    spread_fraction: float = 0.0


USUAL_EFFORT = Effort(PLAYED_SEQUENCES, LEAST_ITERATIONS, COUNTED_SEQUENCES)
# Of an estimate that is wanted within a second: about a quarter. Of 66 random jobs of the page (1.5B to 32B on 8 to 64 H100, staleness
# to 8, three frameworks), nine in ten had iterations as long to 0.7 %, and one was 9.9 % off: two deviations of this spread.
BRIEF_EFFORT = Effort(3_000, 4, 1_024, spread_fraction=0.05)
# Responses begun at the same time end together at first; their ages are mixed after as many iterations as may be
# under way. Generators that are faster than training fill this bound, and would fill any larger one.
LONGEST_WARM_UP = 16
# Where they need more responses under way to keep up, larger bounds are played too, as far as this.
LARGEST_BOUND = 64
# Intervals between syncs in which an adaptive share of lending gets to where it stays: two of them for each of twenty
# steps of 0.05, from the least share to the whole.
ADAPTING_INTERVALS = 40
# Of a job that this project's executor runs.
OWN = "rlplan"
# Micro-batches of an update that go on as they are ready; finer ones would move its end by less than a sixteenth.
MOST_PIECES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSetting:
    """Hold the part of a plan that is simulated; counts are those of the simulated replicas.

    Attributes:
        replicas: Generation replicas that are simulated.
        whole_replicas: Generation replicas of the plan, which they stand for.
        prompts: Prompts of a batch; lengths are in the order of a usual batch.
        samples: Responses of a prompt.
        unit: Responses that are learnt from together: all of a prompt where the algorithm compares them, else one.
        bundle: Responses of a prompt that go to the same replica.
        learnt: Units that an iteration learns from.
        begun: Units that may be begun for each iteration.
        pieces: Units of each piece of an iteration; pieces pass through the works independently.
        piece_updates: For each piece, whether an optimizer step ends it.
        learns: For each piece, whether training on it, and on earlier pieces that wait, starts as soon as it is
            prepared; empty: always.
        ahead: Whether works prepare responses as they end, beside training; else piece by piece.
        staleness: The bound that is simulated, in updates: how old the weights that begin a response may be.
        beyond: Whole updates by which the plan's bound exceeds the one that is simulated.
        bounds_ages: Whether iterations wait for samples that would otherwise get older than the bound.
        takes_batches: Whether an iteration takes the units that were begun for it; else those that end first.
        most_units: Limit on the units under way: a new one is begun when another ends. Infinite where replicas begin
            units whenever they have room.
        replica_units: The same for each replica that generates, those on lent GPUs counted while they do.
        warm_up: Iterations that are simulated first, until the pools are busy, and not counted.
        counted: Iterations over which the mean is taken.
    """

    replicas: int
    whole_replicas: int
    prompts: int
    samples: int
    unit: int
    bundle: int
    learnt: int
    begun: int
    pieces: tuple[int, ...]
    piece_updates: tuple[bool, ...]
    staleness: float
    sync_every: int
    in_flight: InFlight
    warm_up: int
    counted: int
    learns: tuple[bool, ...] = ()
    ahead: bool = False
    beyond: int = 0
    bounds_ages: bool = True
    takes_batches: bool = False
    most_units: float = math.inf
    replica_units: float = math.inf

    @property
    def refills(self) -> bool:
        """Tell whether a new unit is begun only when another one ends."""
        return self.units_with(1) < math.inf

    def units_with(self, replicas: int) -> float:
        """Return how many units are under way at the most while so many replicas generate."""
        return min(self.most_units, self.replica_units * replicas)

    @property
    def iterations(self) -> int:
        """Return the number of simulated iterations."""
        return self.warm_up + self.counted

    def quota(self, version: int) -> int:
        """Return the units that may have been begun when generators have a version's weights."""
        return math.floor((version + self.staleness + 1) * self.begun)

    def last_iteration(self, version: int) -> int:
        """Return the last iteration that may learn from what a version's weights began."""
        return math.ceil(version + self.staleness)


def setting_of(
    plan: Plan,
    generate: PlacedTask,
    most: int = LONGEST_WARM_UP,
    helpers: int = 0,
    effort: Effort = USUAL_EFFORT,
) -> StreamSetting:
    """Return what is played of a plan.

    Args:
        most: Updates of the largest bound that is played, beside those within an interval of syncs.
        helpers: Replicas on the training pool that generate now and then.
        effort: How much is played.
    """
    work, replicas = plan.job.workload, generate.layout.dp
    beyond = max(0, math.floor(plan.staleness - (plan.sync_every - 1 + most)))
    staleness = plan.staleness - beyond
    turns = sum(each.share * mean_length(each.turns) for each in work.environments) or 1.0
    warm_up, counted = _iterations(plan, staleness, most, turns, effort)
    prompts = round(work.prompts * generate.task.batches * rounds_together(plan.job))
    batches = warm_up + counted + min(staleness, most)
    sequences = prompts * work.samples_per_prompt * work.over_provisioning * batches
    times = PLAYED_SEQUENCES / effort.sequences  # as if each counted so often
    played = _played_replicas(plan, prompts, times * sequences * turns, replicas, turns, helpers)
    prompts = prompts * played // replicas
    grouped = load_algorithm(plan.job.algorithm).groups
    unit = work.samples_per_prompt if grouped else 1
    learnt = prompts * work.samples_per_prompt // unit
    framework = generate.framework
    whole = framework.takes_batches and plan.flow.is_endless
    number = 1 if whole else min(work.updates * _pieces_of_update(plan), learnt)
    pieces, ends = _pieces(learnt, number, work.updates)
    begun = math.ceil(prompts * work.over_provisioning) * work.samples_per_prompt // unit
    most_units, replica_units = _limits(framework, plan, max(1.0, staleness) * begun, unit)
    limits = min(most_units, replica_units) < math.inf
    return StreamSetting(
        replicas=played,
        whole_replicas=replicas,
        prompts=prompts,
        samples=work.samples_per_prompt,
        unit=unit,
        bundle=_bundle(
            work.samples_per_prompt,
            prompts,
            played,
            in_turn=limits,
        ),
        learnt=learnt,
        begun=begun,
        pieces=pieces,
        piece_updates=ends,
        staleness=staleness,
        beyond=beyond,
        sync_every=plan.sync_every,
        in_flight=plan.in_flight,
        warm_up=warm_up,
        counted=counted,
        learns=_learning_pieces(plan, number),
        ahead=not plan.learns_in_order and plan.job.framework == OWN,
        bounds_ages=framework.bounds_ages,
        takes_batches=whole,
        most_units=most_units,
        replica_units=replica_units,
    )


def _pieces(learnt: int, number: int, updates: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the units of each piece of an iteration, and for each whether an optimizer step ends it."""
    units = tuple(
        learnt * (piece + 1) // number - learnt * piece // number for piece in range(number)
    )
    ends = tuple(
        (piece + 1) * updates // number > piece * updates // number for piece in range(number)
    )
    return units, ends


def _limits(framework: FrameworkSheet, plan: Plan, ahead: float, unit: int) -> tuple[float, float]:
    """Return the units that may be under way, of all replicas and of each.

    Args:
        ahead: Units that may be begun before they are learnt from.
    """
    most, prompts = framework.limits_prompts, framework.replica_prompts
    if not plan.flow.is_endless:
        return math.inf, math.inf
    each = math.inf if prompts is None else prompts * plan.job.workload.samples_per_prompt / unit
    return ahead if most else math.inf, each


def prepared_share(plan: Plan, task: PlacedTask, setting: StreamSetting) -> int:
    """Return the responses that a model takes together as they end: a micro-batch for each rank, in whole prompts."""
    samples = plan.job.workload.samples_per_prompt
    prompts = task.layout.share_rows(samples) // samples
    played = max(1, prompts * setting.replicas // setting.whole_replicas)
    return played * samples


def _learning_pieces(plan: Plan, number: int) -> tuple[bool, ...]:
    """Return which pieces are learnt from at once: this project's executor takes whole optimizer steps."""
    if plan.job.framework != OWN:
        return ()
    parts = parts_of_updates(load_algorithm(plan.job.algorithm), plan.job)
    return tuple((piece + 1) * parts // number > piece * parts // number for piece in range(number))


def _iterations(
    plan: Plan, staleness: float, most: int, turns: float, effort: Effort
) -> tuple[int, int]:
    """Return the iterations that fill the pools and those that are counted, in whole intervals of syncs.

    Without staleness, iterations are alike but for the order of their responses: each ends before the next one's are
    begun. Where a batch is small, so many are counted that their order's chance does not show.
    """
    sequences = plan.job.workload.sequences
    adapts = plan.lending is not None and plan.lending.policy == "adaptive"
    if staleness == 0 and not adapts:
        return 1, math.ceil(LEAST_SEQUENCES / sequences)
    enough = math.ceil(effort.counted_sequences / (sequences * turns))
    every = plan.sync_every
    warm_up = every * math.ceil(min(staleness + 1, most) / every)
    counted = math.ceil(max(effort.iterations, enough) / every)
    if adapts:
        warm_up += every * ADAPTING_INTERVALS
        counted = max(counted, ADAPTING_INTERVALS)  # the share goes to and fro
    return warm_up, every * counted


def _played_replicas(
    plan: Plan, prompts: int, played_turns: float, replicas: int, turns: float, helpers: int
) -> int:
    """Return how many replicas stand for all: as many as can be played, with whole shares of prompts.

    Args:
        played_turns: Of all replicas in all iterations.
        turns: Of a sequence: 1 where no environment steps between them.
    """
    least = min(prompts, least_prompts(plan.job.workload, turns))
    able = [
        count
        for count in range(1, replicas + 1)
        if prompts * count % replicas == 0
        and prompts * count // replicas >= least
        and helpers * count % replicas == 0
    ]
    fitting = [count for count in able if played_turns * count / replicas <= PLAYED_SEQUENCES]
    return max(fitting, default=min(able, default=replicas))


def least_prompts(work: Workload, turns: float = 1.0) -> int:
    """Return how many prompts of a batch are played at the least, where it has as many.

    Args:
        turns: Of a sequence.
    """
    least = math.ceil(LEAST_SEQUENCES / (work.samples_per_prompt * turns))
    return max(work.updates, least)


def _pieces_of_update(plan: Plan) -> int:
    """Return in how many pieces an update goes on; asynchronous ones take theirs whole."""
    if plan.flow.is_endless:
        return 1
    update = plan.tasks["actor.update"]
    work = plan.job.workload
    micro_batches = work.sequences // (work.updates * update.dp * update.micro_batch)
    return max(1, min(MOST_PIECES, micro_batches))


def _bundle(samples: int, prompts: int, replicas: int, *, in_turn: bool) -> int:
    """Return how many samples of a prompt go to one replica, so that all have some of a batch.

    Args:
        in_turn: Whether all have some of each prompt.
    """
    share = max(1, (1 if in_turn else prompts) * samples // replicas)
    return max(each for each in divisors(samples) if each <= share)
