"""The project's engines on one rank, without Ray: the same shard generates with vLLM and in torch."""

from dataclasses import replace
from typing import Any

import torch

from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.rollout.engines import EngineSetup, start_engine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.shard import build_shard
from tests.executor.plans import TINY, make_job, make_plan

MODEL = replace(TINY, hidden_size=128, head_dim=32)  # vLLM's CPU build has no smaller heads
PROMPTS = torch.tensor([[3, 4, 5, 6], [0, 0, 7, 8], [0, 9, 10, 11], [12, 13, 14, 15], [0, 0, 0, 5]])
LENGTHS = (6, 3, 0, 12, 9)
WIDTH = 12


def setup_of(model, *, ranks=1, max_running=3, memory_fraction=0.9, **sizes):
    """Return the setup of a small run of a model on one pool."""
    job = make_job("grpo", model=model, prompts=8, prompt_tokens=4, response_tokens=WIDTH)
    plan = make_plan(job, {"p0": (ranks, ("actor", "reference"))}, max_running=max_running, **sizes)
    layout = replace(plan.tasks["actor.generate"], memory_fraction=memory_fraction)
    return EngineSetup(job=job, layout=layout, seed=7)


def shard_of(model, rank=0, ranks=1, tp=1, device="cpu"):
    """Return a rank's shard of the actor, with weights large enough that tokens differ."""
    shard = build_shard(
        model,
        "lm",
        make_mesh(train_positions(tp, ranks, 1), rank, torch.device(device)),
        role="actor",
        seed=1,
        precision="fp32",
    )
    scale(shard, 3.0)
    return shard


def scale(shard, factor):
    """Multiply the weights, as an update changes them: in place, vLLM knows nothing of it."""
    with torch.no_grad():
        shard.flat.values.mul_(factor)


def settings(**changes):
    """Return how the tests' responses are drawn."""
    usual: dict[str, Any] = {
        "max_running": 3, "temperature": 1.0, "seed": 7, "iteration": 0, "end_ids": (),
    }  # fmt: skip
    return GenerateSettings(**(usual | changes))


def generate(engine, **changes):
    """Return an engine's responses to the tests' prompts."""
    return engine.generate(
        PROMPTS, PROMPTS > 0, torch.tensor(LENGTHS), torch.arange(5), WIDTH, settings(**changes)
    )


def both(shard, setup):
    """Return vLLM and the torch engine on the same shard."""
    return start_engine("vllm", shard, setup), start_engine("torch-static", shard, setup)
