"""The torch engine's waves, on one rank without Ray."""

import torch

from executor.engines.torch_static import GenerateSettings, generate
from executor.meshes import make_mesh
from executor.protocols import train_positions
from executor.shard import build_shard
from tests.executor.plans import TINY

WIDTH = 6


def generated(present):
    """Return what is said after prompts of one row each, which stand where `present` says."""
    mesh = make_mesh(train_positions(1, 1), 0, torch.device("cpu"))
    shard = build_shard(TINY, "lm", mesh, role="actor", seed=2, precision="fp32")
    rows, width = present.shape
    prompts = torch.arange(97, 97 + width).repeat(rows, 1)
    settings = GenerateSettings(
        max_running=8, temperature=1.0, seed=5, iteration=1, eos_id=TINY.vocab_size
    )
    return generate(
        shard,
        torch.where(present, prompts, 256),
        present,
        torch.full((rows,), WIDTH),
        torch.arange(rows),
        WIDTH,
        settings,
    )


def test_prompts_of_one_length_say_the_same_beside_a_shorter_one_and_without_it():
    whole = torch.ones(3, 4, dtype=torch.bool)
    mixed = whole.clone()
    mixed[2, :2] = False

    alone, beside = generated(whole), generated(mixed)

    assert alone.tokens[:2].equal(beside.tokens[:2])
    torch.testing.assert_close(alone.log_probs[:2], beside.log_probs[:2])


def test_a_short_prompt_says_the_same_alone_and_beside_longer_ones():
    mixed = torch.ones(2, 5, dtype=torch.bool)
    mixed[0, :3] = False

    beside, alone = generated(mixed), generated(mixed[:1])

    assert alone.tokens[0, 5:].equal(beside.tokens[0, 5:])
    torch.testing.assert_close(alone.log_probs[:1], beside.log_probs[:1])
