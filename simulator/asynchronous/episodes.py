"""Episodes at a replica that never stops: responses whose turns wait for environments in between."""

from collections.abc import Iterator

import numpy as np
import simpy

from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.generation.batching.running import DecodeSteps
from rlplan.simulator.generation.episodes.playing import Episode, EpisodeSet
from rlplan.simulator.generation.episodes.waves import EpisodeWaves
from rlplan.simulator.generation.shares import episode_of
from rlplan.simulator.workload.episodes import Episodes, usual_episodes
from rlplan.workload.work import Workload

# Episodes are drawn in orders of their own, apart from those of lengths.
FIRST_SEED = 1_000_000


class EpisodeArrivals:
    """Stand where a replica's sequences stand: each response is an episode.

    Attributes:
        ended: Responses that have ended, in that order; for the caller to empty.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        state: EpisodeSet | EpisodeWaves,
        plans: "EndlessPlans",
    ) -> None:
        self.environment, self.state, self.plans = environment, state, plans
        self.ended: list[int] = []

    @property
    def prefill(self) -> float:
        """Return the seconds of prefills so far."""
        return self.state.prefill

    @property
    def decode(self) -> float:
        """Return the seconds of decode steps so far."""
        return self.state.decode

    @property
    def busy(self) -> bool:
        """Tell whether there are turns to compute."""
        return self.state.busy

    @property
    def next_return(self) -> float:
        """Return when the next environment has stepped; infinite where none steps."""
        return self.state.next_return

    def arrive(self, prompt: int, response: int) -> int:
        """Let an episode of so many tokens begin; return its number."""
        number = self.state.begin(self.plans.episode(prompt, response), self.environment.now)
        self.settle()
        return number

    def withdraw(self, number: int) -> int:
        """Take an episode out before its end; return the tokens of its turn that were made."""
        tokens = self.state.abandon(number)
        self.settle()
        return tokens

    def restart(self) -> int:
        """Throw all running turns out, to be computed again first; return the tokens that they had."""
        return self.state.restart()

    def turn(self) -> DecodeSteps | None:
        """Do a prefill or a step with prompts; where none comes next, return the decode steps that do."""
        return self.state.turn_at(self.environment.now)

    def part_of(self, jump: DecodeSteps, seconds: float) -> DecodeSteps:
        """Return the steps of a jump that begin before so many seconds of it, one at least."""
        return self._jumping.part_of(jump, seconds)

    def follow(self, jump: DecodeSteps) -> None:
        """Decode for the steps of a jump."""
        self._jumping.follow(jump)

    @property
    def _jumping(self) -> EpisodeSet:
        assert isinstance(self.state, EpisodeSet), "waves are taken at once"
        return self.state

    def settle(self) -> None:
        """Let environments step on what has ended, and turns wait whose environments have stepped."""
        self.state.follow_up(self.environment.now)
        self.state.catch_up(self.environment.now)
        self.ended += [number for number, _ in self.state.over]
        self.state.over.clear()


class EndlessPlans:
    """Draw what becomes of responses in their environments, batch after batch, for all replicas together."""

    def __init__(self, workload: Workload, setting: StreamSetting) -> None:
        self.workload, self.setting = workload, setting
        self._rows = self._draw()

    def episode(self, prompt: int, response: int) -> Episode:
        """Return the episode of a prompt and response of so many tokens."""
        drawn, row, number = next(self._rows)
        found = episode_of(drawn, row, prompt, response, self.setting.samples, self.workload)
        return found._replace(prompt=number)

    def _draw(self) -> Iterator[tuple[Episodes, int, int]]:
        """Yield batches of episodes, the row of each, and a number for its prompt."""
        prompts, samples = self.setting.prompts, self.setting.samples
        batch = 0
        while True:
            generator = np.random.default_rng(FIRST_SEED + batch)
            drawn = usual_episodes(self.workload.environments, prompts, samples, generator)
            for row in range(prompts * samples):
                yield drawn, row, batch * prompts + row // samples
            batch += 1
