"""Speculative decoding: an engine's steps that check guesses, and what guesses take (Leviathan et al. 2023, arXiv:2211.17192).

A step of the model has k guesses and one token more for every running sequence: its matrix products have k + 1 tokens of
each, its attention reads each cache once, its host works once. Before it the draft takes k steps of one token each, without
the host's part of a step: engines launch a draft's steps one behind another (vLLM, v1/spec_decode/eagle.py, `propose`;
SGLang, speculative/eagle_worker.py). The step then gives `tokens_per_step` on average, so that everything counts by as
much less for each token: the means of many steps, whatever sequence gives more or fewer in one of them.

An engine may guess up to a number of running sequences alone (`most_running`): above it a step is one without guesses.

Simplified: a tree of guesses (SGLang's topk above 1) is priced as a chain of as many tokens, rejection sampling as
sampling, and a draft head's smaller vocabulary as the model's; engines that guess fewer tokens at larger batches,
instead of none, are left out.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate
from rlplan.job import Speculation
from rlplan.layout import ModelCut
from rlplan.models import ModelArchitecture, layer_kinds
from rlplan.profiles.tables.remembered import kept_with, remembered
from rlplan.simulator.generation.prices import (
    CostQuality,
    EngineSteps,
    ReplicaSetting,
    SteppedInterval,
)
from rlplan.simulator.generation.replica import Chunks
from rlplan.simulator.model import cached_sequence, largest_shard, layer_parameters
from rlplan.simulator.placed import PlacedTask


def draft_model(model: ModelArchitecture, said: Speculation) -> ModelArchitecture | None:
    """Return what guesses a token: a model of its own, layers of the model's last kind, or nothing."""
    if said.draft is not None:
        assert isinstance(said.draft, ModelArchitecture), f"job was not resolved: {said.draft!r}"
        return said.draft
    if not said.layers:
        return None
    kinds = layer_kinds(model)
    return replace(kinds.models[kinds.order[-1]], num_layers=said.layers)


@dataclass(frozen=True, eq=False)
class SpeculativeSteps(EngineSteps):
    """Price steps that check guesses, each token's share of them.

    Attributes:
        said: How many are guessed, and how many tokens a step gives.
        draft: Steps of what guesses; None where no model does.
    """

    said: Speculation
    draft: EngineSteps | None

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens that a step gives each running sequence on average."""
        found = self.said.tokens_per_step
        assert found is not None, "replicas of what is not known have no such steps"
        return found

    @property
    def checked_tokens(self) -> int:
        """Return the tokens of a running sequence that a step computes."""
        return self.said.draft_tokens + 1

    @cached_property
    def plain(self) -> EngineSteps:
        """Return the steps of the same replica while it guesses nothing."""
        return EngineSteps(self.model, self.engine, self.setting, tower_seconds=self.tower_seconds)

    def guesses(self, running: int) -> bool:
        """Tell whether a step of so many running sequences checks guesses."""
        return running <= (self.said.most_running or running)

    @remembered
    def stretch(
        self, running: int, low: int, high: int
    ) -> tuple[SteppedInterval, frozenset[CostQuality]]:
        """Return the straight line on which a token's share of such steps lies between two nodes, and how well it is known."""
        if not self.guesses(running):
            return self.plain.stretch(running, low, high)
        notes: set[CostQuality] = set()
        stages, given = self.setting.pp, self.tokens_per_step
        each = -(-running // stages)
        checked = each * self.checked_tokens
        fixed = self.beside_attention(notes, each, self.checked_tokens)
        base, slope = self._line(notes, each, low, high)
        guess_base, guess_slope = self._guessing(notes, each, low, high)
        # What the host does for each token of the output it does for as many as there are.
        host = self._host_step_seconds + given * (
            self.host_seconds(running) - self._host_step_seconds
        )
        launch = self.floor_seconds(checked)
        overlaps = self.overlaps
        stretch = SteppedInterval(
            low,
            high,
            fixed * stages / given,
            (fixed + base + guess_base) * stages / given,
            (slope + guess_slope) * stages / given,
            (max(launch, host) if overlaps else launch) / given,
            0.0 if overlaps else host / given,
        )
        return stretch, frozenset(notes)

    def _guessing(
        self, notes: set[CostQuality], each: int, low: int, high: int
    ) -> tuple[float, float]:
        """Return all guesses of a step between two nodes of cached tokens, as base and slope; no shorter than launches."""
        draft, guesses = self.draft, self.said.draft_tokens
        if draft is None:
            return 0.0, 0.0
        fixed = draft.beside_attention(notes, each)
        least = draft.floor_seconds(each)
        at_low, at_high = (
            max(least, fixed + draft.decode_grid(notes, each, cached)) for cached in (low, high)
        )
        slope = guesses * (at_high - at_low) / (high - low)
        return guesses * at_low - slope * low, slope

    def decode_attention(self, running: int, cached: int) -> Estimate:
        """Return what all layers' attention takes for the guesses of every running sequence: its cache is read once."""
        if self.engine.steps.cache_read_efficiency:
            return super().decode_attention(running, cached)
        count = self.checked_tokens
        return self._layers(lambda kind: self._attention(kind, running, count, max(1, cached)))

    def drafted_prefill(self, notes: set[CostQuality], chunks: Chunks) -> float:
        """Return what the draft takes to compute prompts too, its attention left out."""
        return (
            0.0
            if self.draft is None
            else self.draft.dense_grid(notes, chunks.parts * chunks.tokens)
        )


@kept_with(lambda replica: replica.setting.device)
def speculative_steps(replica: ReplicaSetting) -> SpeculativeSteps:
    """Return the parts of a replica's steps that check guesses.

    Raises:
        MissingFactError: Its engine decodes in waves, for which nothing of the kind is known.
    """
    said, engine, setting = replica.speculation, replica.engine, replica.setting
    assert said is not None, "asked of replicas that guess"
    if engine.batching not in ("continuous", "mixed"):
        raise MissingFactError(f"engine {engine.name} guesses no tokens ahead (speculation)")
    model = draft_model(replica.model, said)
    draft = None
    if model is not None:
        shard = replace(setting.shard, tp=said.draft_tp or setting.shard.tp)
        draft = EngineSteps(model, engine, replace(setting, shard=shard, pp=1, adapter=None))
    parts = (replica.model, engine, setting, said, draft)
    return SpeculativeSteps(*parts, tower_seconds=replica.tower_seconds)


def draft_weight_bytes(placed: PlacedTask) -> int:
    """Return the bytes on a GPU of what guesses for a generating task; 0 where nothing does.

    Layers of the model's kind share its embedding and head; a model of its own has both.
    """
    said = placed.job.speculation
    model = None if said is None else draft_model(placed.model, said)
    if said is None or model is None:
        return 0
    value_bytes = placed.formats.weight_bytes
    tp = placed.layout.tp if said.draft is None else said.draft_tp or placed.layout.tp
    if said.draft is None:
        cut = ModelCut(tp=tp, ep=placed.layout.ep)
        return said.layers * layer_parameters(model, cut) * value_bytes
    return largest_shard(model, "lm", ModelCut(tp=tp)) * value_bytes


def cache_share(placed: PlacedTask) -> float:
    """Return the share of the KV cache's bytes that is the model's own, beside what the draft keeps of each token."""
    said = placed.job.speculation
    model = None if said is None else draft_model(placed.model, said)
    if said is None or model is None:
        return 1.0
    tp = said.draft_tp or placed.layout.tp
    longest = placed.statistics.longest_tokens
    value_bytes = placed.cache_value_bytes
    drafted = cached_sequence(model, tp, 1, value_bytes, longest).token_bytes
    own = max(1, placed.cached_sequence.token_bytes)
    return own / (own + drafted)
