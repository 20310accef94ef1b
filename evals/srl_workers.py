"""Actor, policy and trainer workers of reinforcement learning on thousands of cores, in simulated time (SimPy).

After SRL (Mei et al. 2024, ICLR, arXiv:2306.16688, sections 3 and 4). An actor worker is one core that steps
the environments of its ring in turn. Inference is `inline`, on that core between steps, or remote: a policy
worker takes all observations that wait, answers them as one batch, and the actor steps the others of its ring
meanwhile. Trainer workers learn in step from samples of their own actors, the next batch collected meanwhile.

Workers that do the same are played once: actors that share a policy worker step by step, over a window; then
all groups of such actors beside all trainers, sample by sample.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass

import simpy

Steps = Generator[simpy.Event, object, None]

# Steps of each environment that a group of actors is played for, and those before its rate is taken.
WINDOW_STEPS, WARM_UP_STEPS = 60, 10
# Groups of actors of each trainer where no policy workers divide them.
INLINE_GROUPS = 8
# Batches of a trainer that samples wait for; actors wait where more are full.
QUEUED_BATCHES = 2
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWorkers:
    """Describe remote inference.

    Attributes:
        workers: That share the actors out.
        batch_seconds: Of a batch, however small.
        observation_seconds: For each observation of it.
        travel_seconds: Of an observation there and an action back.
        max_batch: Most observations of a batch.
    """

    workers: int
    batch_seconds: float
    observation_seconds: float
    travel_seconds: float
    max_batch: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSystem:
    """Describe who works on what.

    Attributes:
        actors: Actor workers, one core each.
        ring_size: Environments of each, stepped in turn.
        step_seconds: Mean of an environment's step on its core.
        step_spread: Its standard deviation, as a share of the mean.
        inline_seconds: Of inference on the actor's core; used where there are no policy workers.
        policies: Remote inference; None for inline.
        trainers: Trainer workers, one GPU each.
        sample_frames: Steps of an environment in one sample.
        train_frames: Fresh frames that a trainer learns from in a step.
        train_seconds: Of a step, once its frames are there.
    """

    actors: int
    ring_size: int = 1
    step_seconds: float
    step_spread: float = 0.2
    inline_seconds: float = 0.0
    policies: PolicyWorkers | None = None
    trainers: int
    sample_frames: int
    train_frames: int
    train_seconds: float

    @property
    def groups(self) -> int:
        """Return the groups of actors that share nothing but trainers with each other."""
        if self.policies is None:
            return min(self.actors, INLINE_GROUPS * self.trainers)
        return min(self.actors, self.policies.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForecast:
    """Hold what workers do in the long run.

    Attributes:
        frames_per_second: Learnt from.
        trainer_waits_fraction: Share of the time in which trainers wait for samples.
    """

    frames_per_second: float
    trainer_waits_fraction: float


def rollout_rate(system: WorkerSystem) -> float:
    """Return the frames per second of one group of actors, played step by step."""
    group = _Group(system, random.Random(SEED))
    group.environment.run()
    return group.rate


class _Group:
    """Play the actors that share a policy worker, or one that answers itself."""

    def __init__(self, system: WorkerSystem, generator: random.Random) -> None:
        self.system, self.generator = system, generator
        self.environment = simpy.Environment()
        remote = system.policies is not None
        self.actors = max(1, round(system.actors / system.groups))
        self.played = actors = self.actors if remote else 1
        self.ready = [simpy.Store(self.environment) for _ in range(actors)]
        self.requests: list[int] = []
        self.asked = self.environment.event()
        self.marks: list[tuple[float, int]] = []
        self.total = actors * system.ring_size * WINDOW_STEPS
        for number in range(actors):
            self.environment.process(self._act(number))
        if remote:
            self.environment.process(self._answer(system.policies))

    @property
    def rate(self) -> float:
        """Return the group's frames per second once it runs evenly."""
        warm = self.total * WARM_UP_STEPS // WINDOW_STEPS
        seconds = self.marks[-1][0] - self.marks[warm - 1][0]
        return (len(self.marks) - warm) / seconds * self.actors / self.played

    def _draw(self) -> float:
        system = self.system
        if not system.step_spread:
            return system.step_seconds
        shape = 1 / system.step_spread**2
        return self.generator.gammavariate(shape, system.step_seconds / shape)

    def _act(self, number: int) -> Steps:
        """Step the environments of a ring, each as soon as its action is there."""
        ready, ring = self.ready[number], self.system.ring_size
        for environment in range(ring):
            ready.put(environment)
        for _ in range(ring * WINDOW_STEPS):
            yield ready.get()
            seconds = self._draw()
            if self.system.policies is None:
                seconds += self.system.inline_seconds
            yield self.environment.timeout(seconds)
            self.marks.append((self.environment.now, number))
            if self.system.policies is None:
                ready.put(0)
                continue
            self.requests.append(number)
            if not self.asked.triggered:
                self.asked.succeed()

    def _answer(self, policies: PolicyWorkers | None) -> Steps:
        """Answer all observations that wait, a batch at a time."""
        assert policies is not None, "remote inference has policy workers"
        left = self.total
        while left > 0:
            yield self.asked
            batch = self.requests[: policies.max_batch]
            del self.requests[: policies.max_batch]
            if not self.requests:
                self.asked = self.environment.event()
            left -= len(batch)
            seconds = policies.batch_seconds + policies.observation_seconds * len(batch)
            yield self.environment.timeout(seconds)
            self.environment.process(self._return(batch, policies.travel_seconds))

    def _return(self, batch: list[int], seconds: float) -> Steps:
        yield self.environment.timeout(seconds)
        for number in batch:
            self.ready[number].put(0)


def play_workers(system: WorkerSystem, steps: int) -> WorkerForecast:
    """Return what all workers do over so many training steps."""
    floor = _Floor(system, rollout_rate(system), random.Random(SEED))
    main = floor.environment.process(floor.train(steps))
    floor.environment.run(until=main)
    seconds = floor.environment.now - floor.begun_seconds
    frames = (steps - 1) * system.trainers * system.train_frames
    return WorkerForecast(
        frames_per_second=frames / seconds,
        trainer_waits_fraction=1 - (steps - 1) * system.train_seconds / seconds,
    )


class _Floor:
    """Play all groups of actors beside all trainers: samples, batches and updates."""

    def __init__(self, system: WorkerSystem, rate: float, generator: random.Random) -> None:
        self.system, self.generator = system, generator
        self.environment = simpy.Environment()
        size = max(system.train_frames * QUEUED_BATCHES, self._bundle_frames)
        self.queues = [
            simpy.Container(self.environment, capacity=size + self._bundle_frames)
            for _ in range(system.trainers)
        ]
        self.begun_seconds = 0.0
        for group in range(system.groups):
            self.environment.process(self._produce(group % system.trainers, rate))

    @property
    def _bundle_frames(self) -> int:
        """Return the frames that a group hands on together: a sample of each of its actors."""
        return max(1, round(self.system.actors / self.system.groups)) * self.system.sample_frames

    def _produce(self, trainer: int, rate: float) -> Steps:
        frames = self._bundle_frames
        yield self.environment.timeout(self.generator.random() * frames / rate)
        while True:
            yield self.environment.timeout(frames / rate)
            yield self.queues[trainer].put(frames)

    def train(self, steps: int) -> Steps:
        """Run updates, each when every trainer has its batch; the first one is not counted."""
        for step in range(steps):
            yield self.environment.all_of(
                [queue.get(self.system.train_frames) for queue in self.queues]
            )
            yield self.environment.timeout(self.system.train_seconds)
            if step == 0:
                self.begun_seconds = self.environment.now
