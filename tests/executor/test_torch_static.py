"""The torch engine's waves, on one rank without Ray."""

import pytest
import torch

from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.shard import build_shard
from tests.executor.plans import TINY

WIDTH = 6


def generated(present, lasts=None, *, numbers=None, max_running=8, greedy=False, end_ids=()):
    """Return what is said after prompts, which stand where `present` says, and the rows of each pass.

    Args:
        lasts: Last token of each prompt; None: the same one.
        numbers: The rows' numbers in the global batch; None: from 0.
    """
    mesh = make_mesh(train_positions(1, 1), 0, torch.device("cpu"))
    shard = build_shard(TINY, "lm", mesh, role="actor", seed=2, precision="fp32")
    passed = []
    shard.stages[0].register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))
    rows, width = present.shape
    prompts = torch.arange(97, 97 + width).repeat(rows, 1)
    if lasts is not None:
        prompts[:, -1] = torch.tensor(lasts)
    settings = GenerateSettings(
        max_running=max_running,
        temperature=1.0,
        seed=5,
        iteration=1,
        end_ids=end_ids,
        greedy=greedy,
    )
    made = TorchStaticEngine(shard).generate(
        torch.where(present, prompts, 256),
        present,
        torch.full((rows,), WIDTH),
        torch.arange(rows) if numbers is None else torch.tensor(numbers),
        WIDTH,
        settings,
    )
    return made, passed


def test_prompts_of_one_length_say_the_same_beside_a_shorter_one_and_without_it():
    whole = torch.ones(3, 4, dtype=torch.bool)
    mixed = whole.clone()
    mixed[2, :2] = False

    (alone, _), (beside, _) = generated(whole), generated(mixed)

    assert alone.tokens[:2].equal(beside.tokens[:2])
    torch.testing.assert_close(alone.log_probs[:2], beside.log_probs[:2])


def test_a_response_ends_at_each_of_several_tokens():
    present = torch.ones(3, 4, dtype=torch.bool)
    whole, _ = generated(present, [1, 2, 3])
    ends = (int(whole.tokens[0, 4]), int(whole.tokens[1, 6]))
    made, _ = generated(present, [1, 2, 3], end_ids=ends)
    for row, said in enumerate(whole.tokens[:, 4:].tolist()):
        first = next((at for at, token in enumerate(said) if token in ends), WIDTH - 1)
        assert made.tokens[row, 4:].tolist() == said[: first + 1] + [0] * (WIDTH - 1 - first)
    assert made.tokens[0, 5] == 0


def test_a_short_prompt_says_the_same_alone_and_beside_longer_ones():
    mixed = torch.ones(2, 5, dtype=torch.bool)
    mixed[0, :3] = False

    (beside, _), (alone, _) = generated(mixed), generated(mixed[:1])

    assert alone.tokens[0, 5:].equal(beside.tokens[0, 5:])
    torch.testing.assert_close(alone.log_probs[:1], beside.log_probs[:1])


@pytest.mark.full
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_samples_of_a_prompt_that_is_prefilled_once_say_what_each_says_alone(padded, greedy):
    present = torch.ones(6, 4, dtype=torch.bool)
    present[2:, 0] = not padded
    lasts = [1, 1, 2, 2, 2, 3]

    together, passed = generated(present, lasts, greedy=greedy)

    assert passed[:2] == [3, 6]
    for row in range(6):
        alone, _ = generated(present[[row]], [lasts[row]], numbers=[row], greedy=greedy)
        assert together.tokens[[row]].equal(alone.tokens)
        torch.testing.assert_close(together.log_probs[[row]], alone.log_probs)


def test_a_wave_that_cuts_a_group_prefills_its_prompt_again():
    present = torch.ones(6, 4, dtype=torch.bool)
    lasts = [1, 1, 1, 1, 2, 2]

    together, passed = generated(present, lasts)
    cut, passed_cut = generated(present, lasts, max_running=3)

    assert (passed[0], passed_cut[0], passed_cut[WIDTH]) == (2, 1, 2)
    assert together.tokens.equal(cut.tokens)
