"""SRL's evaluation: Mei et al. 2024, ICLR, arXiv:2306.16688: actor, policy and trainer workers on 15,000 cores.

A figure that the paper states is taken to hold when the forecast's is within 35 % of it.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import cache

import simpy

from rlplan.evals.claims import ALL, Bound, Measured, Stated, judged, near
from rlplan.evals.reproductions import Progress
from rlplan.results.accuracy import Point, Reproduction

CLOSE = 0.35
FLAT = 0.05  # a larger ring gains less than this where the speed-up has peaked

# Table 7, 32 trainers: frames per second of inline inference on 480 actor workers a trainer, and of remote
# inference on 120, each with a ring of 20 environments.
PUBLISHED_INLINE, PUBLISHED_REMOTE = 477_000.0, 453_000.0
SCALES = (1, 4, 8, 16, 32)
TRAINING_STEPS = 100

# `legacy/experiments/hns_reproduce.py` of github.com/openpsi-project/srl, for each trainer: actor workers of one
# core inline (twice as many with `cpux2`) and remote, policy workers, and a batch of 500 samples of 160
# frames, each used 4 times.
INLINE_ACTORS, REMOTE_ACTORS, POLICY_WORKERS, RING = 240, 120, 8, 20
SAMPLE_FRAMES, TRAIN_FRAMES = 160, 500 * 160 // 4
LARGE_INLINE_ACTORS = 2 * INLINE_ACTORS

# A core of table 7's remote row, which never waits: so long is an environment's step.
STEP_SECONDS = 32 * REMOTE_ACTORS / PUBLISHED_REMOTE
# Espeholt et al. 2020, SEED RL, arXiv:1910.06591, table 13, DMLab with the default network: inference on an
# actor's CPU (IMPALA), and answered by a batching server.
INLINE_SECONDS, RESPONSE_SECONDS = 0.018, 0.011
# Of it, on a policy worker's quarter of a GPU: launches of a small network, and what each observation adds.
BATCH_SECONDS, OBSERVATION_SECONDS = 0.005, 5e-5
TRAIN_SECONDS = 1.0

# github.com/ReallyScalableRL/experiments, readme: the ring where the speed-up peaks, and the speed-up.
RINGS = {
    "Atari Pong": (16, 8.3),
    "SMAC 3m": (7, 3.7),
    "SMAC 27m_vs_30m": (2, 1.5),
}

NOTES = (
    (
        "The workload is assumed to be hide-and-seek as in SRL's repository (`hns_reproduce.py`): for each "
        "trainer 240 or 480 actor workers that infer inline, or 120 with rings of 20 environments and 8 policy "
        "workers; samples of 160 frames, 500 of them a step, used 4 times. Table 7 has these worker counts."
    ),
    (
        "Frames per second of table 7 are held second hand, from a survey that read the paper; 169,000 frames/s "
        "of its row with inference on the trainers' own GPUs are not forecast: what training and inference take "
        "of a GPU there is not published."
    ),
    (
        f"An environment's step takes {1e3 * STEP_SECONDS:.1f} ms: that of table 7's remote row, whose actors "
        "are taken to be busy all the time. Everything else of inference is SEED's: 18 ms on an actor's "
        "core and 11 ms for an answer of a batching server (table 13, DMLab, default network). None of "
        "it was fitted to inline against remote."
    ),
    (
        f"A training step of a trainer is assumed to take {TRAIN_SECONDS:g} s, so that trainers wait for "
        "samples, as the paper's rates grow with actors. Trainers, policy workers and actors share no network "
        "or parameter server in the forecast: what these would hold up at scale is not in it."
    ),
    (
        "Rings: an answer takes the published peak speed-up less one, in steps of the environment; what the "
        "forecast says is at how many environments the peak is reached."
    ),
    (
        "Not forecast: single-machine rows (their cores are not held), rates of Atari, DMLab, gFootball and "
        "SMAC on 800 to 3,200 cores (nothing but the rate is held of them), RLlib's rates, learning curves."
    ),
)

Steps = Generator[simpy.Event, object, None]

# Steps of each environment that a group of actors is played for, and those before its rate is taken.
WINDOW_STEPS, WARM_UP_STEPS = 60, 10
# Groups of actors of each trainer where no policy workers divide them.
INLINE_GROUPS = 8
# Batches of a trainer that samples wait for; actors wait where more are full.
QUEUED_BATCHES = 2
SEED = 0


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim of the paper marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    systems = _systems()
    points = []
    for done, (series, scale) in enumerate(systems):
        if progress:
            progress(done, len(systems), f"{series}, {scale} trainers")
        points.append(_point(series, scale))
    if progress:
        progress(len(systems), len(systems), "claims")
    return Reproduction(
        name="srl",
        title="SRL's evaluation, forecast",
        source="Mei et al. 2024, SRL: Scaling Distributed Reinforcement Learning to Over Ten Thousand Cores, "
        "ICLR 2024, arXiv:2306.16688",
        notes=NOTES,
        points=tuple(points),
        claims=tuple(judged(CLAIMS, None)),
    )


INLINE, LARGE_INLINE, REMOTE = (
    f"inline, {INLINE_ACTORS} actors a trainer",
    f"inline, {LARGE_INLINE_ACTORS} actors a trainer",
    f"remote, {REMOTE_ACTORS} actors a trainer",
)


def _systems() -> list[tuple[str, int]]:
    return [(series, scale) for series in (INLINE, LARGE_INLINE, REMOTE) for scale in SCALES]


# Actor, policy and trainer workers of reinforcement learning on thousands of cores, in simulated time (SimPy).
#
# After SRL (Mei et al. 2024, ICLR, arXiv:2306.16688, sections 3 and 4). An actor worker is one core that steps the
# environments of its ring in turn. Inference is `inline`, on that core between steps, or remote: a policy worker
# takes all observations that wait, answers them as one batch, and the actor steps the others of its ring meanwhile.
# Trainer workers learn in step from samples of their own actors, the next batch collected meanwhile.
#
# Workers that do the same are played once: actors that share a policy worker step by step, over a window; then all
# groups of such actors beside all trainers, sample by sample.


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


def system_of(series: str, scale: int) -> WorkerSystem:
    """Return the workers of a series on so many trainers."""
    actors = {INLINE: INLINE_ACTORS, LARGE_INLINE: LARGE_INLINE_ACTORS, REMOTE: REMOTE_ACTORS}
    inline = WorkerSystem(
        actors=actors[series] * scale,
        step_seconds=STEP_SECONDS,
        inline_seconds=INLINE_SECONDS,
        trainers=scale,
        sample_frames=SAMPLE_FRAMES,
        train_frames=TRAIN_FRAMES,
        train_seconds=TRAIN_SECONDS,
    )
    if series != REMOTE:
        return inline
    policies = PolicyWorkers(
        workers=POLICY_WORKERS * scale,
        batch_seconds=BATCH_SECONDS,
        observation_seconds=OBSERVATION_SECONDS,
        travel_seconds=RESPONSE_SECONDS - BATCH_SECONDS,
    )
    return replace(inline, ring_size=RING, policies=policies)


@cache
def _forecast(series: str, scale: int) -> WorkerForecast:
    return play_workers(system_of(series, scale), TRAINING_STEPS)


def _point(series: str, scale: int) -> Point:
    published = {LARGE_INLINE: PUBLISHED_INLINE, REMOTE: PUBLISHED_REMOTE}.get(series)
    found, actors = _forecast(series, scale), system_of(series, scale).actors
    waits = f"trainers wait {found.trainer_waits_fraction:.0%} of the time"
    return Point(
        figure="Table 7",
        panel="hide-and-seek",
        series=series,
        gpus=scale,
        quantity="frames_per_second",
        forecast=found.frames_per_second,
        published=published if scale == max(SCALES) else None,
        plan=f"{actors:,} actor workers, {waits}",
        is_comparable=series != REMOTE,  # a step's seconds are those of this row
    )


def _rate(series: str, scale: int) -> float:
    return _forecast(series, scale).frames_per_second


def _beside(published: float, found: float) -> Measured:
    return Measured(figures=(found,), evidence=f"forecast {found:.2f}, published {published:.2f}")


def _inference(where: str, text: str, published: float, of: Callable[[], float]) -> Stated[None]:
    return Stated(
        where=where,
        text=text,
        bounds=(near(published, CLOSE),),
        measure=lambda _: _beside(published, of()),
    )


def _growth(_: None) -> Measured:
    """Return the share of the smallest system's frames a second and trainer that the largest has."""
    ratios = {
        series: _rate(series, MOST) / _rate(series, 1) / MOST for series in (LARGE_INLINE, REMOTE)
    }
    shown = ", ".join(f"{ratio:.2f} ({series})" for series, ratio in ratios.items())
    evidence = f"frames/s on {MOST} trainers over {MOST} times those on one: {shown}"
    return Measured(figures=tuple(ratios.values()), evidence=evidence)


def _ring(name: str) -> Stated[None]:
    """Return the claim that rings larger than where the speed-up peaked gain nothing."""
    ring, published = RINGS[name]

    def measure(_: None) -> Measured:
        half, whole, twice = (ring_speed_up(n, published - 1) for n in (ring // 2, ring, 2 * ring))
        shown = f"{half:.1f}, {whole:.1f} and {twice:.1f} with {ring // 2}, {ring} and {2 * ring}"
        return Measured(figures=(twice / whole, half < whole), evidence=shown)

    return Stated(
        where="Experiments, environment rings",
        text=f"{name}: the speed-up by a ring peaks at {ring} environments, at {published}",
        bounds=(Bound(most=1 / (1 - FLAT)), ALL),
        measure=measure,
    )


MOST = max(SCALES)
SAME = PUBLISHED_REMOTE / PUBLISHED_INLINE
CLAIMS: tuple[Stated[None], ...] = (
    _inference(
        "Table 7",
        f"remote inference reaches {SAME:.2f} of the frames/s of inline inference with a quarter of the "
        "actor cores",
        SAME,
        lambda: _rate(REMOTE, MOST) / _rate(LARGE_INLINE, MOST),
    ),
    _inference(
        "Abstract (v2)",
        "a worker of its own for inference gives up to 3.7 times the frames/s of the same actor cores",
        3.7,
        lambda: (
            (_rate(REMOTE, MOST) / REMOTE_ACTORS)
            / (_rate(LARGE_INLINE, MOST) / LARGE_INLINE_ACTORS)
        ),
    ),
    _inference(
        "Abstract",
        "hide-and-seek takes 5 / 3 as long with CPU inference as with GPU inference (3 and 5 times faster "
        "than Rapid)",
        5 / 3,
        lambda: _rate(REMOTE, MOST) / _rate(INLINE, MOST),
    ),
    Stated(
        where="Abstract",
        text=f"throughput goes on growing up to {LARGE_INLINE_ACTORS * MOST:,} cores and {MOST} trainers",
        bounds=(Bound(least=1 - CLOSE),) * 2,
        measure=_growth,
    ),
    *map(_ring, RINGS),
)


@cache
def ring_speed_up(ring: int, response_steps: float) -> float:
    """Return how many times as fast an actor is with a ring as with one environment.

    Args:
        response_steps: What an answer takes, in steps of the environment.
    """
    policies = PolicyWorkers(
        workers=1, batch_seconds=0.0, observation_seconds=0.0, travel_seconds=response_steps
    )
    alone = WorkerSystem(
        actors=1,
        step_seconds=1.0,
        policies=policies,
        trainers=1,
        sample_frames=1,
        train_frames=1,
        train_seconds=1.0,
    )
    return rollout_rate(replace(alone, ring_size=ring)) / rollout_rate(alone)
