"""Streams of made-up costs, for tests of generation beside training."""

import math
from dataclasses import replace
from typing import Any

from rlplan.estimate import Estimate
from rlplan.simulator.asynchronous.playing import Stream, long_run, play_stream
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.asynchronous.training import piece_work
from rlplan.simulator.costs.taskcost import cost_of
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.timeline.agenda import Entry
from rlplan.simulator.timeline.engine import Work
from rlplan.workload import Empirical, Workload

RESPONSES = (3, 4, 5, 5, 7, 9, 13, 24)


def decode_seconds(running, cached):
    return 0.02 + 0.001 * running + 0.0001 * running * cached


def prefill_seconds(sequences, tokens):
    return 0.005 + 0.0002 * sequences * tokens


def replica(**changes):
    fields: dict[str, Any] = {
        "batching": "continuous", "max_running": 8, "kv_blocks": 10_000, "block_tokens": 16,
        "max_batched_tokens": 1_000_000, "prefill_seconds": prefill_seconds,
        "decode_seconds": decode_seconds,
    }  # fmt: skip
    return Replica(**(fields | changes))


def workload(prompts=16, samples=1, **changes):
    fields: dict[str, Any] = {
        "prompts": prompts, "samples_per_prompt": samples, "prompt_tokens": 10,
        "response_tokens": Empirical(values=RESPONSES),
    }  # fmt: skip
    return Workload(**(fields | changes))


def setting(work, *, replicas=2, updates=1, grouped=False, over=1.0, **changes):
    unit = work.samples_per_prompt if grouped else 1
    learnt = work.sequences // unit
    fields: dict[str, Any] = {
        "replicas": replicas, "whole_replicas": replicas, "prompts": work.prompts,
        "samples": work.samples_per_prompt, "unit": unit, "bundle": 1, "learnt": learnt,
        "begun": round(learnt * over), "pieces": (learnt // updates,) * updates,
        "piece_updates": (True,) * updates, "staleness": 1.0, "sync_every": 1,
        "in_flight": "keep", "warm_up": 4, "counted": 8,
    }  # fmt: skip
    return StreamSetting(**(fields | changes))


def entry(name, pool, seconds, stage="training", after=()):
    work = Work(key=name, name=name, pool=pool, holds=(pool,), after=after)
    return Entry(work, stage, cost_of({"forward": Estimate(seconds)}))


def stream(
    work=None,
    *,
    learning=1.0,
    syncing=0.1,
    engine=None,
    works=None,
    calls=None,
    cores=math.inf,
    write_seconds=0.0,
    **changes,
):
    """Return a stream of an update on one pool and generators on another."""
    work = work or workload()
    transition = Work(
        key="transition", name="transition", pool="g", holds=("g", "t"), activity="transition"
    )
    update = piece_work(entry("actor.update", "t", learning), (), learns=True)
    return Stream(
        workload=work,
        setting=setting(work, **changes),
        replica=engine or replica(),
        time_factor=1.0,
        generate=Work(key="actor.generate", name="actor.generate", pool="g", holds=("g",)),
        works=works or [update],
        transition=transition,
        transition_seconds=syncing,
        pools=["g", "t"],
        order={},
        calls=calls,
        cores=cores,
        write_seconds=write_seconds,
    )


def preparing_works(learning, share, *, fixed=False):
    """Return a rule, a reference and an update, the last two on one pool."""
    rule = entry("rule.compute_reward", "r", 0.1, stage="preparation")
    infer = entry("reference.compute_log_prob", "t", 0.5, stage="preparation")
    update = entry("actor.update", "t", learning)
    return [
        piece_work(rule, (), learns=False),
        piece_work(infer, (), learns=False, share=share, fixed=fixed),
        piece_work(update, (rule.work.key, infer.work.key), learns=True),
    ]


def with_setting(made, **changes):
    return replace(made, setting=replace(made.setting, **changes))


def mean_seconds(made):
    """Return the length of an iteration in the long run."""
    return long_run(made, play_stream(made)).seconds
