"""Small jobs with held-out prompts, and what their runs leave."""

import json
from dataclasses import replace

from rlplan.executor.control.metrics import read_metrics
from rlplan.workload import Evaluation
from tests.executor.plans import ALL_ROLES, make_job, make_plan

HELD_OUT = Evaluation(prompts_file="held-out.jsonl", every=2, correct_from=0.1, shown_prompts=2)
APART = {"p0": (1, ALL_ROLES), "generator": (1, ("actor",))}
# What differs between two runs of one seed is the clock, and whether weights were moved before the first batch.
OTHERS = ("seconds", "tokens_per_second", "task_", "stage_", "timing_s", "transition_")


def write_held_out(folder):
    """Write the prompts that `HELD_OUT` names, and return the folder."""
    lines = (json.dumps({"prompt": f"{number}+1"}) for number in range(5))
    (folder / "held-out.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def plan_of(pools, evaluation=HELD_OUT, mode="sync", **sizes):
    job = replace(make_job(), evaluation=evaluation)
    transition = "two-copies" if "generator" in pools else "hybridflow"
    plan = make_plan(job, pools, transition=transition, **sizes)
    return replace(plan, mode=mode, staleness=int(mode not in ("sync", "streaming")))


def learnt(out):
    """Return what a run's iterations learnt, without what they took."""
    return [
        {name: value for name, value in row.items() if not name.startswith(OTHERS)}
        for row in read_metrics(out)
    ]


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
