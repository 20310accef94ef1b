"""Static batches with a KV cache in plain torch: waves of at most `max_running` sequences.

A wave is prefilled whole, a prompt once for all of its samples, and decoded until its last response
ends. In a pipeline a wave is split into as many parts as there are stages, so that all stages work at the
same time. Every sequence has its own random numbers, so its tokens depend neither on the layout nor on
other sequences.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.data.batches import PADDING, RESPONSE
from rlplan.executor.data.packing import prompt_leaders
from rlplan.executor.passes import attention_mask, forward_through, token_positions
from rlplan.executor.rollout.engines import EngineSetup
from rlplan.executor.rollout.sampling import (
    GenerateSettings,
    Sequences,
    greedy_tokens,
    sampled_tokens,
    uniform_numbers,
    without_responses,
)
from rlplan.executor.weights.shard import ModelShard


class TorchStaticEngine:
    """Generate with a shard's own weights, wherever they are."""

    def __init__(self, shard: ModelShard) -> None:
        self._shard = shard

    def load_weights(self) -> None:
        """Do nothing: the weights are the shard's own."""

    def generate(
        self,
        prompts: Tensor,
        present: Tensor,
        lengths: Tensor,
        rows: Tensor,
        width: int,
        settings: GenerateSettings,
    ) -> Sequences:
        """Return the sequences of a replica's rows.

        Args:
            prompts: Left-padded prompts. Shape (B, P).
            present: Where they have tokens. Shape (B, P).
            lengths: Most tokens of each response; it ends there or at eos. Shape (B,).
            rows: Each row's number in the global batch. Shape (B,).
            width: R, the columns kept for responses.
        """
        shard, (batch, prompt_width) = self._shard, prompts.shape
        made = without_responses(prompts, present, width)
        with shard.without_gradients():
            for start in range(0, batch, settings.max_running):
                waves = [
                    Wave(
                        shard,
                        Sequences(made.tokens[part], made.parts[part], made.log_probs[part]),
                        lengths[part],
                        uniform_numbers(rows[part], width, settings),
                        prompt_width,
                        settings,
                    )
                    for part in _parts(shard, start, min(start + settings.max_running, batch))
                ]
                for wave in waves:
                    wave.start()
                while waves:
                    waves = [wave for wave in waves if wave.advance()]
        return made

    def release(self) -> None:
        """Do nothing: the cache went with its wave."""


def start(shard: ModelShard, _: EngineSetup) -> TorchStaticEngine:
    """Return the engine on a rank's shard."""
    return TorchStaticEngine(shard)


def _parts(shard: ModelShard, start: int, stop: int) -> list[slice]:
    """Return the rows that go through the pipeline together: about equal parts, one for each stage.

    Ranks with several stages that interleave pass all rows at a time: they meet each row again.
    """
    count = min(shard.mesh.pp_size, stop - start) if len(shard.stages) == 1 else 1
    edges = [start + (stop - start) * part // count for part in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


class Wave:
    """Hold sequences that are decoded together, and fill in their responses, in place.

    Args:
        lengths: Most tokens of each response. Shape (B,).
        uniforms: Uniform numbers in [0, 1), one for every token. Shape (B, R).
    """

    def __init__(
        self,
        shard: ModelShard,
        sequences: Sequences,
        lengths: Tensor,
        uniforms: Tensor,
        prompt_width: int,
        settings: GenerateSettings,
    ) -> None:
        self._shard, self._sequences, self._settings = shard, sequences, settings
        self._lengths, self._uniforms = lengths, uniforms.to(lengths.device)
        self._prompt_width, self._steps = prompt_width, int(lengths.max())
        # Columns that are padding in all rows of this wave are left out.
        self._first = int((sequences.parts != PADDING).any(dim=0).int().argmax())
        # Prompts of one length need no mask, and attention without one is faster.
        prompts = sequences.parts[:, self._first : prompt_width]
        self._padded = bool((prompts == PADDING).any())
        self._running = lengths > 0
        self._step = 0
        leaders = prompt_leaders(sequences.tokens, sequences.parts)
        # The rows that are prefilled, and for each row the prefilled row whose prompt it shares.
        self._prefilled, self._sources = torch.unique(leaders, return_inverse=True)
        self._cache = KeyValueCache(
            shard.num_layers,
            prompt_width - self._first + self._steps,
            self._sources if len(self._prefilled) < len(leaders) else None,
        )
        self._logits: Tensor | None = None
        self._sampled: Tensor | None = None
        # What is on its way through a pipeline while this rank works on other waves.
        self._under_way: list[dist.Work] = []

    def start(self) -> None:
        """Prefill the prompts, each once for all of its rows."""
        prompt = slice(self._first, self._prompt_width)
        tokens = self._sequences.tokens[self._prefilled, prompt]
        parts = self._sequences.parts[self._prefilled, prompt]
        self._cache.length = 0
        mask = attention_mask(parts) if self._padded else None
        self._pass(tokens, mask, token_positions(parts))
        self._cache.length = tokens.shape[1]

    def advance(self) -> bool:
        """Append the next tokens and pass them on; return whether there was anything to pass."""
        goes_on = self.append()
        if goes_on:
            self.decode()
        return goes_on

    def append(self) -> bool:
        """Sample the next token of every running sequence; return whether any needs another one."""
        made, at = self._sequences, self._prompt_width + self._step
        chosen, log_prob = self._sample()
        running = self._running & (self._step < self._lengths)
        made.tokens[:, at] = torch.where(running, chosen, 0)
        made.parts[:, at] = torch.where(running, RESPONSE, PADDING).to(torch.int8)
        made.log_probs[:, at] = torch.where(running, log_prob, 0.0)
        for end in self._settings.end_ids:
            running = running & (chosen != end)
        self._running = running
        self._step += 1
        return self._step < self._steps and bool(self._running.any())

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Return each row's next token and its log-probability, on every stage of the pipeline."""
        if self._shard.mesh.pp_size == 1:
            assert self._logits is not None
            return self._next_tokens(self._logits)
        # The last stage has broadcast the tokens, so it has received all that was sent to it.
        for work in self._under_way:
            work.wait()
        self._under_way.clear()
        assert self._sampled is not None
        return self._sampled[0].long(), self._sampled[1].float()

    def _next_tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's next token and its log-probability."""
        if self._settings.greedy:
            return greedy_tokens(logits, self._settings.temperature)
        return sampled_tokens(logits, self._uniforms[:, self._step], self._settings.temperature)

    def decode(self) -> None:
        """Pass the tokens that were sampled last."""
        at = self._prompt_width + self._step - 1
        tokens = self._sequences.tokens[:, at : at + 1]
        mask: Tensor | None = None
        # A sequence that has ended stays in its wave; what it attends does not matter.
        positions = torch.full_like(tokens, self._cache.length)
        if self._padded:
            present = self._sequences.parts[:, self._first : at + 1] != PADDING
            present[:, -1] = True
            mask, positions = present[:, None, None], present.sum(dim=1, keepdim=True) - 1
        self._pass(tokens, mask, positions)
        self._cache.length += 1

    def _pass(self, tokens: Tensor, mask: Tensor | None, positions: Tensor) -> None:
        """Run tokens through the model; the last stage keeps the logits of the last position."""
        sending = self._under_way
        outputs = forward_through(
            self._shard, tokens, mask, positions, self._cache, only_last=True, sending=sending
        )
        self._logits = outputs[:, 0] if outputs is not None else None
        if outputs is not None and len(outputs) < len(self._lengths):
            self._logits = outputs[self._sources, 0]
        if self._shard.mesh.pp_size > 1:
            self._broadcast()

    def _broadcast(self) -> None:
        """Sample on the last stage and broadcast: other stages go on until they need the tokens."""
        mesh = self._shard.mesh
        # Both in one message: float64 holds any token's number.
        self._sampled = torch.empty(2, len(self._lengths), dtype=torch.float64, device=mesh.device)
        if self._logits is not None:
            self._sampled = torch.stack([part.double() for part in self._next_tokens(self._logits)])
        last, group = mesh.pipeline_rank(mesh.pp_size - 1), mesh.group("pp")
        work = dist.broadcast(self._sampled, last, group=group, async_op=True)
        assert work is not None
        self._under_way.append(work)

    def rewind(self) -> None:
        """Forget all sampled tokens, so that the same steps can be timed again."""
        self._step, self._cache.length = 0, self._prompt_width - self._first
        self._running = self._lengths > 0


class KeyValueCache:
    """Hold keys and values of a wave for all layers in two tensors, filled from the left.

    It is what transformers' layers ask of a cache: `update` and `get_seq_length`.

    Args:
        sources: Row of the first pass whose keys and values each row of the wave begins with, where
            rows begin alike; None: its own. Shape (B,).
    """

    is_compileable = False

    def __init__(self, layers: int, capacity_tokens: int, sources: Tensor | None = None) -> None:
        self.length = 0
        self._sources = sources
        self._layers, self._capacity = layers, capacity_tokens
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_unused: object, **_named: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, heads, new, head_dim) of one layer; return all of that layer."""
        held_keys, held_values = keys, values
        if self.length == 0 and self._sources is not None:
            held_keys, held_values = keys[self._sources], values[self._sources]
        if self._keys is None or self._values is None:
            # Nothing beyond the length is ever read.
            shape = (self._layers, *held_keys.shape[:2], self._capacity, keys.shape[3])
            self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        stop = self.length + keys.shape[2]
        self._keys[layer, :, :, self.length : stop] = held_keys
        self._values[layer, :, :, self.length : stop] = held_values
        if self.length == 0:
            return keys, values
        return self._keys[layer, :, :, :stop], self._values[layer, :, :, :stop]

    def get_seq_length(self, *_: object) -> int:
        """Return how many tokens are held."""
        return self.length
