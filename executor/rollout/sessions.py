"""Sessions: generation over many calls, which return responses as they end.

A rank keeps its running sequences between calls. Each call begins new ones, samples some tokens of each, and
returns those that have ended. New weights may come between two calls.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from rlplan.executor.data.batches import PADDING, PROMPT, RESPONSE, Array, left_padded
from rlplan.executor.rollout.engines import GenerationEngine
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine, Wave
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences, without_responses
from rlplan.executor.weights.shard import ModelShard
from rlplan.plan import FLOWS, InFlight, Mode


@dataclass(slots=True, eq=False)
class Response:
    """Hold a sequence that is being generated: its prompt, and its tokens so far.

    Attributes:
        batch: Number of the batch of prompts.
        row: Its number in that batch; batch and row seed its random numbers.
        most_tokens: Limit on the tokens of the response.
        turn: Turn of an episode, from 0; it enters the seed too.
        versions: For each token, the version of the weights that sampled it, in updates.
    """

    batch: int
    row: int
    prompt: npt.NDArray[np.int64]
    most_tokens: int
    turn: int = 0
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def parts(self) -> list[int]:
        """Return the kind of each of `tokens`, as `rlplan.executor.data.batches` numbers them."""
        return [RESPONSE] * len(self.tokens)

    def has_ended(self, end_ids: tuple[int, ...]) -> bool:
        """Tell whether the last token ends the response."""
        is_full = len(self.tokens) == self.most_tokens
        return is_full or (bool(self.tokens) and self.tokens[-1] in end_ids)


class Session(Protocol):
    """Generate responses over many calls; all ranks of a replica make the same calls."""

    def begin(self, responses: Sequence[Response]) -> None:
        """Queue responses, in their order; they begin when there is room."""

    def take_weights(self) -> None:
        """Note that the shard has new weights."""

    def withdraw(self, unwanted: AbstractSet[tuple[int, int]]) -> None:
        """Abort responses that have not ended, by batch and row."""

    def advance(self, steps: int, version: int) -> list[Response]:
        """Sample tokens of all running responses; return those that have ended, in order.

        Args:
            steps: Most tokens of each.
            version: Of the weights.
        """

    @property
    def running(self) -> int:
        """Return how many responses wait or run."""

    @property
    def is_between_waves(self) -> bool:
        """Tell whether no response runs."""


def start_session(
    engine: GenerationEngine,
    shard: ModelShard,
    settings: GenerateSettings,
    mode: Mode,
    in_flight: InFlight,
) -> Session:
    """Return a session of a rank's engine.

    With an engine that only generates whole responses, a session ends every response in the call that begins it.
    """
    if isinstance(engine, TorchStaticEngine):
        return WaveSession(shard, settings, mode, in_flight)
    return WholeSession(engine, shard, settings)


class WaveSession:
    """Decode waves of sequences with the torch engine.

    Where generation stops after each batch, the waves are those of a synchronous batch (as many responses as may run,
    one wave after another), so all numbers are the same. In endless modes new responses join the running ones: all
    are prefilled again as one wave (prompt and tokens so far). If responses in flight keep their KV cache of older
    weights, new responses make a separate wave.
    """

    def __init__(
        self, shard: ModelShard, settings: GenerateSettings, mode: Mode, in_flight: InFlight
    ) -> None:
        self._shard, self._settings = shard, settings
        self._joins, self._keeps = FLOWS[mode].is_endless, in_flight == "keep"
        self._waiting: list[Response] = []
        self._waves: list[_RunningWave] = []

    @property
    def running(self) -> int:
        """Return how many responses have begun or wait, and have not ended."""
        return len(self._waiting) + len(self._decoded())

    @property
    def is_between_waves(self) -> bool:
        """Tell whether all that have begun have ended."""
        return not self._waves

    def begin(self, responses: Sequence[Response]) -> None:
        """Queue responses, in their order; they begin when there is room."""
        self._waiting += responses

    def take_weights(self) -> None:
        """Prefill what runs again with the new weights, unless its cache is kept."""
        if not self._keeps and self._waves:
            self._waves = [_RunningWave(self._shard, self._settings, self._decoded())]

    def withdraw(self, unwanted: AbstractSet[tuple[int, int]]) -> None:
        """Forget responses that have not ended; their rows are computed until their wave is formed anew."""
        self._waiting = _still_wanted(self._waiting, unwanted)
        for wave in self._waves:
            wave.running = _still_wanted(wave.running, unwanted)
        self._waves = [wave for wave in self._waves if wave.running]

    def advance(self, steps: int, version: int) -> list[Response]:
        """Sample tokens of all running responses; return those that have ended, in order."""
        self._fill()
        with self._shard.without_gradients():
            ended = [each for wave in self._waves for each in wave.advance(steps, version)]
        self._waves = [wave for wave in self._waves if wave.running]
        return sorted(ended, key=lambda each: (each.batch, each.row))

    def _decoded(self) -> list[Response]:
        return [each for wave in self._waves for each in wave.running]

    def _fill(self) -> None:
        """Let waiting responses begin where there is room."""
        running = self._decoded()
        room = self._settings.max_running - len(running)
        if not self._waiting or room < 1 or (self._waves and not self._joins):
            return
        joining, self._waiting = self._waiting[:room], self._waiting[room:]
        if not self._keeps:
            joining, self._waves = [*running, *joining], []
        self._waves.append(_RunningWave(self._shard, self._settings, joining))


class _RunningWave:
    """Decode some responses together, from what was said so far.

    Attributes:
        running: Those that have not ended, in order.
    """

    def __init__(
        self, shard: ModelShard, settings: GenerateSettings, responses: Sequence[Response]
    ) -> None:
        self._responses, self.running = responses, list(responses)
        self._end_ids, self._step = settings.end_ids, 0
        prefixes = [np.append(each.prompt, each.tokens).astype(np.int64) for each in responses]
        left = [each.most_tokens - len(each.tokens) for each in responses]
        tokens, present = (
            torch.from_numpy(each).to(shard.device) for each in left_padded(prefixes)
        )
        self._width, most = tokens.shape[1], max(left)
        uniforms = np.zeros((len(prefixes), most))
        for row, response in enumerate(responses):
            uniforms[row, : left[row]] = _uniforms(response, settings)
        self._sequences = without_responses(tokens, present, most)
        self._wave = Wave(
            shard,
            self._sequences,
            torch.tensor(left, device=shard.device),
            torch.from_numpy(uniforms),
            self._width,
            settings,
        )

    def advance(self, steps: int, version: int) -> list[Response]:
        """Sample at most so many tokens of each response, and note them; return those that end."""
        if self._step == 0:
            self._wave.start()
        begin, goes_on = self._step, True
        while goes_on and self._step < begin + steps:
            goes_on = self._wave.advance()
            self._step += 1
        new = slice(self._width + begin, self._width + self._step)
        _note(self._responses, self._sequences, new, version)
        ended = [each for each in self.running if each.has_ended(self._end_ids)]
        self.running = [each for each in self.running if not each.has_ended(self._end_ids)]
        return ended


def _note(responses: Sequence[Response], made: Sequences, new: slice, version: int) -> None:
    """Append to responses what some columns of their rows have of them."""
    counts = (made.parts[:, new] == RESPONSE).sum(dim=1).tolist()
    columns = made.tokens[:, new].tolist(), made.log_probs[:, new].tolist()
    for response, count, tokens, log_probs in zip(responses, counts, *columns, strict=True):
        response.tokens += tokens[:count]
        response.log_probs += log_probs[:count]
        response.versions += [version] * count


def _uniforms(response: Response, settings: GenerateSettings) -> npt.NDArray[np.float64]:
    """Return a response's own random numbers from its next token on, as whole batches have them."""
    turn = [response.turn] if response.turn else []
    stream = np.random.default_rng([settings.seed, response.batch, response.row, *turn])
    return stream.random(response.most_tokens)[len(response.tokens) :]


class WholeSession:
    """Generate with an engine that samples whole responses in a call."""

    def __init__(
        self, engine: GenerationEngine, shard: ModelShard, settings: GenerateSettings
    ) -> None:
        self._engine, self._shard, self._settings = engine, shard, settings
        self._waiting: list[Response] = []

    @property
    def running(self) -> int:
        """Return how many responses wait."""
        return len(self._waiting)

    @property
    def is_between_waves(self) -> bool:
        """Tell whether all that have begun have ended: between calls, always."""
        return True

    def begin(self, responses: Sequence[Response]) -> None:
        """Take responses in."""
        self._waiting += responses

    def take_weights(self) -> None:
        """Do nothing: every call takes the weights as they are."""

    def withdraw(self, unwanted: AbstractSet[tuple[int, int]]) -> None:
        """Forget responses that wait."""
        self._waiting = _still_wanted(self._waiting, unwanted)

    def advance(self, steps: int, version: int) -> list[Response]:  # noqa: ARG002 -- whole responses
        """Generate all responses that wait to their ends; return them, in order."""
        ended, self._waiting = self._waiting, []
        self._engine.load_weights()
        for number in sorted({each.batch for each in ended}):
            own = [each for each in ended if each.batch == number]
            self._generate(own, replace(self._settings, iteration=number), version)
        self._engine.release()
        return sorted(ended, key=lambda each: (each.batch, each.row))

    def _generate(
        self, responses: Sequence[Response], settings: GenerateSettings, version: int
    ) -> None:
        device, padded = self._shard.device, left_padded([each.prompt for each in responses])
        prompts, present = (torch.from_numpy(each).to(device) for each in padded)
        made = self._engine.generate(
            prompts,
            present,
            torch.tensor([each.most_tokens for each in responses], device=device),
            torch.tensor([each.row for each in responses]),
            max(each.most_tokens for each in responses),
            settings,
        )
        _note(responses, made, slice(prompts.shape[1], None), version)


class TurnSession(WholeSession):
    """Generate the turns of a task's episodes, all at the same turn, with weights that are there already."""

    def advance(self, steps: int, version: int) -> list[Response]:  # noqa: ARG002 -- whole responses
        """Generate all turns that wait to their ends; return them, in order."""
        ended, self._waiting = self._waiting, []
        self._generate(ended, replace(self._settings, turn=ended[0].turn), version)
        return ended


def _still_wanted(
    responses: Sequence[Response], unwanted: AbstractSet[tuple[int, int]]
) -> list[Response]:
    return [each for each in responses if (each.batch, each.row) not in unwanted]


def padded_responses(
    responses: Sequence[Response], prompt_width: int = 0, response_width: int = 0
) -> dict[str, Array]:
    """Return `tokens`, `parts`, `log_probs` and `versions` of responses, padded. Shape (B, P + R).

    Args:
        prompt_width: Least P.
        response_width: Least R.
    """
    width = max([prompt_width, *(len(each.prompt) for each in responses)])
    behind = max([response_width, *(len(each.tokens) for each in responses)])
    shape = (len(responses), width + behind)
    columns: dict[str, Array] = {
        "tokens": np.zeros(shape, dtype=np.int64),
        "parts": np.full(shape, PADDING, dtype=np.int8),
        "log_probs": np.zeros(shape, dtype=np.float32),
        "versions": np.zeros(shape, dtype=np.int32),
    }
    for row, each in enumerate(responses):
        first, stop = width - len(each.prompt), width + len(each.tokens)
        columns["tokens"][row, first:stop] = [*each.prompt, *each.tokens]
        columns["parts"][row, first:width] = PROMPT
        columns["parts"][row, width:stop] = each.parts
        columns["log_probs"][row, width:stop] = each.log_probs
        columns["versions"][row, width:stop] = each.versions
    return columns
