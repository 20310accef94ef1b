"""Waves that new sequences join: how this project's torch engine generates in modes that hand samples on one by one.

The engine decodes in calls. Every few tokens it looks which sequences have ended; once enough have, the call ends and
hands them over. If others wait and slots are free, all running sequences are prefilled again together with them, as
one wave (prompt and tokens so far); where the KV cache is kept, new sequences make a wave of their own. A wave
computes all its rows, also those of sequences that have ended, until it is formed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlplan.simulator.generation.replica import Replica, WaveCosts, blocks_of, prefill_passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Hold how a replica's calls follow each other.

    Attributes:
        look_tokens: Tokens of each response between two looks.
        looks: Most looks of a call.
        enough: Responses that have ended with which a call ends.
        call_seconds: From the end of a call to the beginning of the next one.
        joins: Whether others join those that run, and do not wait for their end.
    """

    look_tokens: int
    looks: int
    enough: int
    call_seconds: float
    joins: bool = True


@dataclass(slots=True, eq=False)
class _Row:
    """Hold a sequence that runs.

    Attributes:
        alone: Whether no other one has its prompt.
    """

    sequence: int
    prompt: int
    left: int
    alone: bool
    made: int = 0


@dataclass(slots=True, eq=False)
class _Wave:
    """Hold rows that are computed together.

    Attributes:
        rows: Those that have not ended.
        width: Rows that are computed.
        cached: Tokens that each of them has, all padded to the longest.
        left: Tokens until the longest of them has ended.
        begins: Prefixes that are to be prefilled; 0 once they are.
        costs: What it takes: more where its rows were not all as long when it was formed.
    """

    rows: list[_Row]
    width: int
    cached: int
    left: int
    begins: int
    costs: WaveCosts


@dataclass(slots=True, eq=False)
class JoiningSet:
    """Keep the sequences of a replica whose waves new ones join.

    Args:
        longest_tokens: Longest sequence that will ever arrive.
        keeps: Whether what runs keeps its cache when others join, or new weights come.

    Attributes:
        ended: Sequences that have ended, in that order; for the caller to empty.
        prefill: Seconds of prefills so far.
        decode: Seconds of decode steps so far, and between calls.
    """

    replica: Replica
    longest_tokens: int
    calls: Calls
    keeps: bool = False
    prefill: float = 0.0
    decode: float = 0.0
    ended: list[int] = field(default_factory=list)
    _waiting: list[_Row] = field(default_factory=list)
    _waves: list[_Wave] = field(default_factory=list)
    _count: int = 0

    @property
    def busy(self) -> bool:
        """Tell whether there are sequences to compute."""
        return bool(self._waiting or self._waves)

    def arrive(self, prompt: int, response: int, *, alone: bool = False) -> int:
        """Let a sequence wait behind all others; return its number.

        Args:
            alone: Whether no other one has its prompt.
        """
        self._count += 1
        self._waiting.append(_Row(self._count, prompt, response, alone))
        return self._count

    def withdraw(self, sequence: int) -> int:
        """Take a sequence out before its end; return the tokens of its response that were made."""
        for rows in (self._waiting, *(wave.rows for wave in self._waves)):
            for row in rows:
                if row.sequence == sequence:
                    rows.remove(row)
                    self._waves = [wave for wave in self._waves if wave.rows]
                    return row.made
        raise AssertionError("a sequence that is withdrawn is here")

    def restart(self) -> int:
        """Let all running sequences be prefilled again; return the tokens that they have."""
        running = self._running()
        if self.keeps or not running:
            return 0
        self._waves = [self._wave_of(running)]
        return sum(row.prompt + row.made for row in running)

    def turn(self) -> None:
        """Take the next call."""
        enough = len(self.ended) + self.calls.enough
        for _ in range(self.calls.looks):
            self._fill()
            for wave in self._waves:
                self._advance(wave)
            self._waves = [wave for wave in self._waves if wave.rows]
            if len(self.ended) >= enough or not self._waves:
                break
        self.decode += self.calls.call_seconds

    @property
    def _slots(self) -> int:
        replica = self.replica
        each = blocks_of(self.longest_tokens, replica.block_tokens) + replica.state_blocks
        return min(replica.max_running, max(1, replica.kv_blocks // each))

    def _running(self) -> list[_Row]:
        return [row for wave in self._waves for row in wave.rows]

    def _fill(self) -> None:
        running = self._running()
        room = self._slots - len(running)
        if not self._waiting or room < 1 or (self._waves and not self.calls.joins):
            return
        joining, self._waiting = self._waiting[:room], self._waiting[room:]
        if not self.keeps:
            joining, self._waves = [*running, *joining], []
        self._waves.append(self._wave_of(joining))

    def _wave_of(self, rows: Sequence[_Row]) -> _Wave:
        new = sum(not (row.made or row.alone) for row in rows)
        return _Wave(
            rows=list(rows),
            width=len(rows),
            cached=max(row.prompt + row.made for row in rows),
            left=max(row.left for row in rows),
            begins=len(rows) - new + -(-new // self.replica.prompt_samples),
            costs=self.replica.wave_costs([row.prompt + row.made for row in rows]),
        )

    def _advance(self, wave: _Wave) -> None:
        """Sample some tokens of each row: the first of them comes out of the prefill."""
        if wave.begins:
            prefixes, cost = [wave.cached] * wave.begins, wave.costs.prefill_seconds
            self.prefill += prefill_passes(self.replica, prefixes, cost)
            wave.begins = 0
        tokens = min(self.calls.look_tokens, max(row.left for row in wave.rows))
        steps = tokens - (tokens == wave.left)  # behind the last token comes no step
        if steps:
            self.decode += wave.costs.decode_run(wave.width, wave.cached, steps)
        wave.cached, wave.left = wave.cached + tokens, wave.left - tokens
        for row in wave.rows:
            said = min(tokens, row.left)
            row.made, row.left = row.made + said, row.left - said
        self.ended += [row.sequence for row in wave.rows if not row.left]
        wave.rows = [row for row in wave.rows if row.left]
