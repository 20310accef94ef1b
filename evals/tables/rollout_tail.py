"""Steps of veRL, RLHFuse and RollPacker (Gao et al. 2025, arXiv:2509.21009, figure 9): one row for each system's mean.

The steps are of RL on mathematics, code and questions for a judge in equal parts. Lengths are not in the
table: they are those of figure 2a, read as far as it goes (4k tokens), and of figure 10a, by which the longest
response reaches the maximum in every step of veRL. Steps differ by 100 s and more, most of it in the rewards:
code that runs into its time limit. Of rewards only a mean is known, by figure 10c, and given to the forecast.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from rlplan.calibration import NO_CALIBRATION, STAGE_TASKS, Calibration
from rlplan.errors import FileError
from rlplan.evals.rows import row_key
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.measured.framework_runs import (
    PublishedRun,
    UnknownSettingError,
    device_sheet,
    job_of,
    plan_of,
)
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.planner.plans.assembly import host_pool
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Row, StageSeconds
from rlplan.results.forecast import Forecast
from rlplan.simulator.costs.taskcost import DRIVER
from rlplan.simulator.simulate import simulate
from rlplan.workload import Logged

SETTINGS = (
    "model", "gpu", "gpus", "system", "mode", "prompts_per_step", "samples_per_prompt", "max_response",
    "rollout_tp", "train_tp_pp_cp",
)  # fmt: skip
STEP, SECONDS = "step", "step_time_s"
FRAMEWORK, SYSTEM = "verl-megatron-0.6", "veRL"
# The paper's repository is built for vLLM 0.8.4 (roll/third_party/vllm).
ENGINE = "vllm-0.8"
# Others by how their names begin.
OTHERS = {
    "RLHFuse": "its rewards and reference run, and its training begins, while others still generate",
    "RollPacker": "it launches more responses than it keeps, and gathers long ones in steps of their own",
}
# Figure 2a, the three tasks in equal parts: means up to 4,096 tokens of 1,022, 902 and 613, with 5.0, 2.9 and
# 0.8 % beyond, spread evenly over the logarithms up to 16,384. Cut at 8,192 that is a mean of 931, with 1.4 %
# cut. Of longer maxima the figure tells the mean, and figure 10a that a response reaches them in every step:
# as many as five of 1,024.
MEAN_TOKENS = {8192: 931.0}
LONG_MEAN_TOKENS = 983.0
CLIP_RATIO = {8192: 0.0145}
LONG_CLIP_RATIO = 0.005
# Their configuration (examples/e2e_performance of the paper's repository): most tokens of a sequence, prompts
# at most, and single sequences as micro-batches, without padding and with layers computed again.
MODEL_LENGTH = 32_768
PROMPT_MAX = 2048
MICRO_BATCH = 1
MEMORY_FRACTION = 0.85
# DeepMath, KodCode and RLVR questions with their templates; as those of other published steps.
PROMPT_TOKENS = 128
# Rewards of veRL come after generation: a step of Qwen2.5-7B takes 233 s, and one of as long responses whose
# rewards are behind generation 129 s (figure 10c, long rounds). The same 1,024 responses are judged whatever
# the model.
REWARD_SECONDS = 233.0 - 129.0
# Figure 11: seconds of generation without their batching of tails, by model and maximum; and table 1, for a
# 14B model: 66 to 72 % of a step of veRL.
GENERATION_SECONDS = {
    ("Qwen2.5-7B", 8192): 82.0,
    ("Qwen2.5-14B", 16_384): 277.0,
    ("Qwen2.5-32B", 32_768): 673.0,
}
NOTE = "lengths by figure 2a, rewards by figure 10c of arXiv:2509.21009"


def merged(records: Sequence[Record]) -> list[Record]:
    """Return one record for each run: the mean of its steps, in seconds."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(row_key(record, SETTINGS), []).append(record)
    return [
        {**run[0], STEP: str(len(run)), SECONDS: f"{fmean(float(step[SECONDS]) for step in run)}"}
        for run in runs.values()
    ]


def rows_of(record: Record, site: Calibration = NO_CALIBRATION) -> Iterator[Row]:
    """Yield the mean step of a run, or why it has no forecast."""
    system, measured = record["system"], float(record[SECONDS])
    label = f"{system} {record['model']} on {record['gpus']} {record['gpu']}, mean of {record[STEP]} steps"
    if system != SYSTEM:
        known = (why for name, why in OTHERS.items() if system.startswith(name))
        reason = next(known, f"no sheet is of {system}")
        yield skipped_row(label, reason, kind=system, measured_seconds=measured)
        return
    try:
        plan = run_plan(record)
        forecast = simulate(plan, load_facts(plan.job).with_calibration(site))
    except (UnknownSettingError, FileError) as error:
        yield skipped_row(label, str(error), kind=system, measured_seconds=measured)
        return
    row = forecast_row(
        label,
        measured,
        forecast,
        kind=system,
        note=NOTE,
        group=f"{SYSTEM.lower()}, {device_sheet(record['gpu'])}",
        stages=_stages(record, plan, forecast),
    )
    # What of the rewards no pass hides: verl would compute log-probabilities after them.
    exposed = forecast.iteration_seconds - sum(
        each.forecast_seconds for each in row.stages.values()
    )
    yield replace(row, given_seconds=max(0.0, min(exposed, REWARD_SECONDS)))


def _stages(record: Record, plan: Plan, forecast: Forecast) -> FrozenDict[str, StageSeconds]:
    """Return what each stage is forecast to take; of the measured ones generation is published."""
    generated = GENERATION_SECONDS.get((record["model"], int(record["max_response"])))
    seconds = {each.name: each.seconds - each.parts.get(DRIVER, 0.0) for each in forecast.costs}
    return FrozenDict(
        {
            stage: StageSeconds(
                measured_seconds=generated if stage == "generation" else None,
                forecast_seconds=seconds[task],
                engine=plan.tasks[task].engine if task in plan.tasks else "",
            )
            for stage, (task,) in STAGE_TASKS.items()
            if task in seconds
        }
    )


def run_plan(record: Record) -> Plan:
    """Return the plan of a run of veRL: its published layouts, all models on all GPUs.

    Raises:
        UnknownSettingError: Something is published otherwise than the project knows it.
    """
    run = _run(record)
    job = job_of(run)
    engines = replace(job.engines, generate=ENGINE)
    return plan_of(run, replace(_with_rewards(job), engines=engines))


def _run(record: Record) -> PublishedRun:
    most = int(record["max_response"])
    prompts, samples = int(record["prompts_per_step"]), int(record["samples_per_prompt"])
    tp, pp, cp = (int(size) for size in record["train_tp_pp_cp"].split("/"))
    return PublishedRun(
        framework=FRAMEWORK,
        algorithm="grpo",
        model=record["model"],
        gpu=record["gpu"],
        gpus=int(record["gpus"]),
        prompts=prompts,
        samples=samples,
        sequences_per_update=prompts * samples,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=Logged(
            mean=MEAN_TOKENS.get(most, LONG_MEAN_TOKENS),
            max=most,
            clip_ratio=CLIP_RATIO.get(most, LONG_CLIP_RATIO),
        ),
        longest_tokens=min(PROMPT_MAX + most, MODEL_LENGTH),
        max_total_tokens=MODEL_LENGTH,
        tp=tp,
        pp=pp,
        cp=cp,
        rollout_tp=int(record["rollout_tp"]),
        rollout_memory_fraction=MEMORY_FRACTION,
        micro_batch=MICRO_BATCH,
        packs=False,
        recomputes=True,
        compares_reference=True,
        offloads=frozenset({"actor", "reference"}),
    )


def _with_rewards(job: Job) -> Job:
    """Return the job with rewards that take as long as figure 10c says, after generation."""
    assert job.rewards is not None, "published runs have rewards"
    each = REWARD_SECONDS / math.ceil(job.workload.sequences / host_pool(job).gpus)
    rewards = replace(job.rewards, function_seconds_per_sample=each, streamed=False)
    return replace(job, rewards=rewards)


READER = TableReader(
    about=(
        "Mean seconds of a step of veRL, RLHFuse and RollPacker on H800 (RollPacker's figure 9). Given: layouts, "
        "batches and maxima; lengths by its figure 2a; the seconds of rewards by its figure 10c."
    ),
    columns=frozenset({*SETTINGS, STEP, SECONDS}),
    rows_of=rows_of,
    calibrated_rows_of=rows_of,
    merged=merged,
)
