"""Generation through a pipeline: its stages work at the same time, and say what one process says."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.shard import build_shard
from tests.executor.plans import TINY

pytestmark = pytest.mark.ray

MODEL = replace(TINY, num_layers=4)
WIDTH = 7
PATIENCE_SECONDS = 60.0


def shard_on(rank, stages):
    mesh = make_mesh(train_positions(1, stages, stages), rank, torch.device("cpu"))
    return build_shard(MODEL, "lm", mesh, role="actor", seed=2, precision="fp32")


def generated(shard, rows, max_running, *, greedy=False):
    """Return what is outputs after prompts of several lengths, and its log-probabilities."""
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(1, TINY.vocab_size, (rows, 6), generator=generator)
    present = torch.ones_like(prompts, dtype=torch.bool)
    for row in range(rows):
        present[row, : row % 3] = False
    settings = GenerateSettings(
        max_running=max_running, temperature=1.0, seed=1, iteration=4, end_ids=(7,), greedy=greedy
    )
    lengths = torch.tensor([WIDTH - row % 4 for row in range(rows)])
    made = TorchStaticEngine(shard).generate(
        prompts, present, lengths, torch.arange(rows), WIDTH, settings
    )
    return made.tokens.numpy(), made.log_probs.numpy()


# Waves that stages divide, that leave some over, of fewer rows than stages, and of a single row.
WAVES = ((8, 4), (7, 5), (3, 8), (1, 4))


def all_waves(rank, stages):
    shard = shard_on(rank, stages)
    return [generated(shard, *sizes, greedy=greedy) for sizes in WAVES for greedy in (False, True)]


@pytest.mark.full
@pytest.mark.parametrize("stages", [2, 4])
def test_tokens_are_those_of_one_process_in_waves_of_any_size(worker_pool, stages):
    expected = all_waves(0, 1)
    for outputs in worker_pool.on_ranks(stages, all_waves):
        for (tokens, log_probs), (right, at) in zip(outputs, expected, strict=True):
            assert (tokens == right).all()
            assert log_probs == pytest.approx(at, abs=1e-5)


def generate_when_the_first_stage_is_ahead(folder, rank, stages):
    """Generate, the last stage beginning a pass once the first one has begun the pass after it."""
    shard, passes, rows = shard_on(rank, stages), 2 * WIDTH, []

    def begins(_, arguments):
        number = len(rows)
        rows.append(len(arguments[0]))
        if rank == 0:
            (folder / str(number)).touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while rank and number + 1 < passes and not (folder / str(number + 1)).exists():
            assert time.monotonic() < deadline, f"the first stage waits for pass {number}"
            time.sleep(0.001)

    shard.stages[0].register_forward_pre_hook(begins)
    prompts = torch.arange(1, 25).view(4, 6)
    TorchStaticEngine(shard).generate(
        prompts,
        torch.ones_like(prompts, dtype=torch.bool),
        torch.full((4,), WIDTH),
        torch.arange(4),
        WIDTH,
        GenerateSettings(max_running=4, temperature=1.0, seed=1, iteration=0, end_ids=()),
    )
    return rows


def test_the_first_stage_works_on_other_rows_while_the_last_one_works(worker_pool, tmp_path):
    by_rank = worker_pool.on_ranks(2, partial(generate_when_the_first_stage_is_ahead, tmp_path))
    assert by_rank == [[2] * 14, [2] * 14]
