"""Measured steps beside their forecast: logs in the frameworks' formats, normal and with a stage slowed down."""

import csv
import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.calibration import STAGE_TASKS
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Checkpoints, DynamicSampling, Job, PrefillApart
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.measured.checking import (
    NO_TIMER,
    RunContext,
    check_steps,
    normal_ranges,
    site_spread,
    with_drift,
)
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.accuracy import step_check_table, verdict_lines
from rlplan.results.measurement import LoggedSteps
from rlplan.simulator.costs.taskcost import DRIVER, STATES_AWAY, STATES_BACK
from rlplan.simulator.simulate import simulate
from rlplan.trainers import TrainerOptions
from rlplan.workload import Environment, Evaluation
from tests.planner.configs.test_importing import OPTIONS

STEPS = 5
MEAN = {"prompt": 155.0, "response": 600.0}
KEYS = {
    "verl": {
        "generation": "timing_s/gen",
        "old_log_prob": "timing_s/old_log_prob",
        "reference": "timing_s/ref",
        "update_actor": "timing_s/update_actor",
        "weight_sync": "timing_s/update_weights",
        "step": "timing_s/step",
        "prompt": "prompt_length/mean",
        "response": "response_length/mean",
        "reward": "timing_s/reward",
    },
    "nemo-rl": {
        "generation": "timing/train/generation",
        "old_log_prob": "timing/train/policy_and_reference_logprobs",
        "update_actor": "timing/train/policy_training",
        "weight_sync": "timing/train/prepare_for_generation/total",
        "step": "timing/train/total_step_time",
        "response": "train/mean_gen_tokens_per_sample",
        "prompt": "train/mean_prompt_length",
        "reward": "timing/train/reward_calculation",
    },
    "openrlhf": {
        "generation": "timing/generation",
        "log_probs": "timing/make_experience",
        "training": "timing/ppo_train",
        "weight_sync": "timing/broadcast",
        "step": "timing/step_total",
        "response": "response_length",
        "total": "total_length",
    },
}


@pytest.fixture(scope="module")
def ran():
    """Return a small GRPO job of verl on eight H100, with a plan."""
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp",
            "models": dict.fromkeys(("actor", "reference"), "qwen2.5-1.5b"),
            "workload": {
                "prompts": 64,
                "samples_per_prompt": 8,
                "prompt_tokens": 155,
                "response_tokens": 600,
                "updates": 2,
            },
            "cluster": [{"gpu": "h100", "gpus_per_node": 8}],
            "rewards": {"function": "exact_match", "function_seconds_per_sample": 1e-4},
        },
        "job",
    )
    job = resolve_job(job, Path())
    facts = load_facts(job)
    pools = [{"gpus": 8, "roles": ["actor", "reference"]}]
    draft = decode(PlanDraft, {"job": "job.yaml", "pools": pools}, "plan")
    return RunContext(plan=complete(draft, job, facts), facts=facts)


@pytest.fixture(scope="module")
def expected(ran):
    """Return the forecast seconds by stage, of whatever log it is."""
    costs = {
        cost.name: cost.seconds - cost.parts.get(DRIVER, 0.0)
        for cost in simulate(ran.plan, ran.facts).costs
    }
    found = {
        stage: sum(costs.get(task, 0.0) for task in tasks) for stage, tasks in STAGE_TASKS.items()
    }
    both = found["old_log_prob"] + found["reference"]
    return found | {"log_probs": both, "training": found["update_actor"]}


def steps_of(expected, framework, slow=(), times=2.5):
    """Return the figures of a log's steps: a little off the forecast, the slow stages by `times`."""
    keys = KEYS[framework]
    found = []
    for step in range(1, STEPS + 1):
        wobble = 1 + 0.03 * math.sin(step)
        stages = {
            name: wobble * expected[name] * (times if name in slow else 1.05)
            for name in keys
            if name in (*STAGE_TASKS, "log_probs", "training")
        }
        if framework == "nemo-rl":  # the policy's and the reference's passes are one timer
            stages["old_log_prob"] *= expected["log_probs"] / expected["old_log_prob"]
        row = {keys[name]: seconds for name, seconds in stages.items()}
        if "reward" in keys:
            row[keys["reward"]] = 0.5
        row[keys["step"]] = sum(row.values()) + 0.4
        row |= {keys[name]: mean for name, mean in MEAN.items() if name in keys}
        if "total" in keys:
            row[keys["total"]] = sum(MEAN.values())
        found.append(row)
    return found


def write_console(path, framework, steps):
    lines = ["INFO 11-22 engine started"]
    for number, row in enumerate(steps, 1):
        if framework == "verl":
            figures = " - ".join(f"{key}:{value}" for key, value in row.items())
            lines.append(f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{number} - {figures}")
        elif framework == "openrlhf":
            lines.append(f"2026-09-01 10:00:00 - INFO - ✨ Global step {number}: {row}")
        else:
            lines += nemo_lines(number, row)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def nemo_lines(number, row):
    timers = {
        key.removeprefix("timing/train/"): value
        for key, value in row.items()
        if key.startswith("timing/train/") and "total_step_time" not in key
    }
    total = row["timing/train/total_step_time"]
    return [
        f"(pid=1) {'=' * 25} Step {number}/{STEPS} {'=' * 25}",
        "📊 Training Results:",
        "  • Loss: 0.0123",
        f"  • Mean Generation Length: {row['train/mean_gen_tokens_per_sample']:.4f}",
        "⏱️  Timing:",
        f"  • Total step time: {total:.2f}s",
        *(f"  • {key}: {value:.4f}s ({value / total:.1%})" for key, value in timers.items()),
        "  • Training FLOPS: 812.00 TFLOPS (101.50 TFLOPS per rank)",
    ]


def write_jsonl(path, _, steps):
    path.write_text("\n".join(json.dumps({"step": n, "data": s}) for n, s in enumerate(steps, 1)))


def write_wide_csv(path, _, steps):
    """As a tracker exports charts: the run's name before each key, bounds behind."""
    keys = list(steps[0])
    head = ["Step", *(f"my run - {key}{end}" for key in keys for end in ("", "__MIN", "__MAX"))]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(head)
        rows.writerows(
            [n, *(s[key] for key in keys for _ in range(3))] for n, s in enumerate(steps)
        )


def write_long_csv(path, _, steps):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "tag", "value"])
        rows.writerows([n, key, v] for n, s in enumerate(steps) for key, v in s.items())


def varint(number):
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def write_events(path, _, steps):
    """As TensorBoard writes scalars; its checksums are not looked at."""
    path.mkdir()
    records = []
    for number, row in enumerate(steps):
        values = b"".join(
            field(1, field(1, key.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value))
            for key, value in row.items()
        )
        event = varint(1 << 3 | 1) + struct.pack("<d", 0) + varint(2 << 3) + varint(number * 200)
        event += field(5, values)
        records.append(struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4))
    (path / "events.out.tfevents.1.host").write_bytes(b"".join(records) + b"\x07\x00")


WRITERS = {
    "console": write_console,
    "jsonl": write_jsonl,
    "csv": write_wide_csv,
    "long.csv": write_long_csv,
    "events": write_events,
}


@pytest.mark.parametrize("framework", KEYS)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_log_of_every_format_is_read_as_its_steps(expected, tmp_path, framework, kind):
    steps = steps_of(expected, framework)
    path = tmp_path / f"log.{kind}"
    WRITERS[kind](path, framework, steps)
    log = read_log(path)
    keys = KEYS[framework]
    assert isinstance(log, LoggedSteps)
    assert (log.sheet.name, log.steps) == (framework, STEPS - 1)
    assert log.response_tokens == pytest.approx(MEAN["response"])
    shown_on_console = not (framework == "nemo-rl" and kind == "console")
    assert log.prompt_tokens == (pytest.approx(MEAN["prompt"]) if shown_on_console else None)
    assert log.step_seconds == pytest.approx(steps[-1][keys["step"]], rel=0.1)
    assert set(log.stage_seconds) == set(log.sheet.stages.values()) & set(keys)


@pytest.mark.parametrize("framework", KEYS)
def test_a_normal_log_is_called_normal(ran, expected, tmp_path, framework):
    write_console(tmp_path / "log", framework, steps_of(expected, framework))
    found = check_steps(tmp_path / "log", ran)
    assert found.verdict == "normal"
    assert {each.name for each in found.stages} >= {"generation", "weight_sync"}


@pytest.mark.parametrize(
    ("framework", "stage"),
    [(name, stage) for name, keys in KEYS.items() for stage in keys if stage in STAGE_TASKS],
)
def test_a_stage_that_is_slowed_down_is_named_alone(ran, expected, tmp_path, framework, stage):
    times = 4 if stage == "weight_sync" else 2.5  # weight syncs differ most from site to site
    write_console(tmp_path / "log", framework, steps_of(expected, framework, (stage,), times))
    found = check_steps(tmp_path / "log", ran)
    assert {each.name for each in found.stages if each.verdict != "normal"} == {stage}
    (slow,) = [each for each in found.stages if each.verdict == "slow"]
    assert slow.causes
    assert found.verdict == "slow"


def test_a_site_that_is_slower_as_a_whole_has_no_slow_stage(ran, expected, tmp_path):
    stages = tuple(KEYS["verl"])
    write_console(tmp_path / "log", "verl", steps_of(expected, "verl", stages, 1.5))
    assert not [
        each for each in check_steps(tmp_path / "log", ran).stages if each.verdict == "slow"
    ]


def test_seconds_in_no_stage_are_told_and_are_why_a_step_is_slow(ran, expected, tmp_path):
    steps = steps_of(expected, "verl")
    for row in steps:
        row["timing_s/reward"] = 1.5 * row["timing_s/step"]
        row["timing_s/step"] *= 3.5
    write_console(tmp_path / "log", "verl", steps)
    found = check_steps(tmp_path / "log", ran)
    assert list(found.others) == ["reward", NO_TIMER]
    assert found.step.verdict == "slow"
    assert any(each.startswith("waiting: ") and "reward" in each for each in found.step.causes)


@pytest.mark.parametrize(
    ("tokens", "told"), [(512 * 750.0, False), (512 * 900.0, False), (4096 * 755.0, True), (64 * 755.0, True)]
)  # fmt: skip
def test_steps_of_other_sequences_than_the_plan_s_are_noted(ran, expected, tmp_path, tokens, told):
    """64 prompts with 8 responses each of 155 and 600 tokens are 386,560."""
    steps = [{**row, "perf/total_num_tokens": tokens} for row in steps_of(expected, "verl")]
    write_console(tmp_path / "log", "verl", steps)
    notes = [
        each for each in check_steps(tmp_path / "log", ran).notes if each.startswith("tokens:")
    ]
    assert len(notes) == told
    assert not told or "the plan's 512 sequences 386,560 at these lengths" in notes[0]


def test_steps_without_lengths_are_of_other_sequences_where_no_mean_length_makes_up_for_it(
    ran, tmp_path
):
    for tokens, told in ((700_000, False), (800_000, True)):
        (tmp_path / "log").write_text(
            f"timing_s/gen: 40\ntiming_s/update_actor: 30\ntiming_s/step: 80\nperf/total_num_tokens: {tokens}\n"
        )
        notes = check_steps(tmp_path / "log", ran).notes
        assert any("sequences 386,560 at its lengths" in each for each in notes) == told


def test_a_stage_that_slows_down_during_the_run_is_noted(ran, expected, tmp_path):
    steps = steps_of(expected, "verl") * 3
    slow = [row | {"timing_s/gen": 1.5 * row["timing_s/gen"]} for row in steps]
    write_console(tmp_path / "log", "verl", steps + slow)
    (note,) = [each for each in check_steps(tmp_path / "log", ran).notes if "over the log" in each]
    assert "generation" in note
    assert "update_actor" not in note


def test_a_long_tail_is_a_likely_cause_of_slow_generation(ran, expected, tmp_path):
    steps = steps_of(expected, "verl", ("generation",), 15)
    for row in steps:
        row |= {"response_length/max": 8192, "response_length/clip_ratio": 0.04}
    write_console(tmp_path / "log", "verl", steps)
    (slow,) = [e for e in check_steps(tmp_path / "log", ran).stages if e.name == "generation"]
    assert slow.verdict == "slow"
    assert slow.causes[0].startswith("tail: the longest response has 8,192 tokens, 13.7 times")
    assert "4% of responses are cut" in slow.causes[0]


@pytest.mark.parametrize(("cut", "named"), [(0.0, False), (0.04, True)])
def test_a_tail_that_the_forecast_has_too_is_no_cause_unless_responses_are_cut(
    ran, expected, tmp_path, cut, named
):
    rows = steps_of(expected, "verl", ("generation",), 4)
    for row in rows:
        row |= {"response_length/max": 1810, "response_length/clip_ratio": cut}
    slow = slow_stage(tmp_path, ran, rows, "generation")
    assert slow.verdict == "slow"
    assert any(each.startswith("tail: ") for each in slow.causes) is named


@pytest.mark.parametrize(
    ("slowest", "mean", "cause"),
    [
        ((30.0, 40.0), 20.0, "tool time: "),
        ((900.0, 40.0), 87.0, "stuck environment: "),
        ((2.0, 40.0), 0.1, "few running: "),
    ],
)
def test_environments_that_the_longest_episode_waits_for_are_a_cause(
    ran, expected, tmp_path, slowest, mean, cause
):
    steps = steps_of(expected, "verl", ("generation",), 15)
    for row in steps:
        row |= {
            "timing_s/agent_loop/slowest/tool_calls": slowest[0],
            "timing_s/agent_loop/slowest/generate_sequences": slowest[1],
            "timing_s/agent_loop/tool_calls/mean": mean,
        }
    write_console(tmp_path / "log", "verl", steps)
    found = check_steps(tmp_path / "log", ran)
    (slow,) = [each for each in found.stages if each.name == "generation"]
    assert slow.causes[0].startswith(cause)
    assert not [name for name in found.others if "tool" in name]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            {"token_budget": 1200},
            "token budget: actor.update has 1,200 tokens a micro-batch, of sequences of 755",
        ),
        (
            {"micro_batch": 1, "token_budget": None},
            "small batch: actor.update runs one sequence of 755 tokens",
        ),
        ({"token_budget": 16384}, ""),
    ],
)
def test_micro_batches_of_hardly_two_sequences_are_a_cause(ran, expected, tmp_path, sizes, words):
    tasks = ran.plan.tasks
    update = replace(tasks["actor.update"], **sizes)
    own = replace(ran, plan=replace(ran.plan, tasks=tasks.with_item("actor.update", update)))
    write_console(tmp_path / "log", "verl", steps_of(expected, "verl", ("update_actor",), 12))
    found = check_steps(tmp_path / "log", own)
    (slow,) = [each for each in found.stages if each.name == "update_actor"]
    told = [each for each in slow.causes if each.startswith(("token budget", "small batch"))]
    assert [each[: len(words)] for each in told] == ([words] if words else [])


def with_layouts(ran, **fields):
    """Return what ran with other fields of some tasks; `actor_update` is the task `actor.update`."""
    tasks = ran.plan.tasks
    for name, changes in fields.items():
        task = name.replace("_", ".", 1)
        tasks = tasks.with_item(task, replace(tasks[task], **changes))
    return replace(ran, plan=replace(ran.plan, tasks=tasks))


def slow_stage(folder, ran, rows, name):
    """Return the check of one stage of a log of verl's that has these rows."""
    write_console(folder / "log", "verl", rows)
    return next(each for each in check_steps(folder / "log", ran).stages if each.name == name)


def test_few_sequences_at_a_time_are_a_cause_where_more_take_much_less(ran, expected, tmp_path):
    rows = steps_of(expected, "verl", ("update_actor",), 40)
    few, many = (
        with_layouts(ran, actor_update={"micro_batch": size, "token_budget": None})
        for size in (2, 32)
    )
    told = slow_stage(tmp_path, few, rows, "update_actor").causes
    assert told[0].startswith("small batch: actor.update runs 2 sequences of 755 tokens at a time")
    assert "8 at a time are forecast to take" in told[0]
    causes = slow_stage(tmp_path, many, rows, "update_actor").causes
    assert not any(each.startswith("small batch") for each in causes)


def test_an_update_that_is_slow_alone_is_not_slow_for_what_forward_passes_share(
    ran, expected, tmp_path
):
    same = {"micro_batch": 1, "token_budget": 8192}
    own = with_layouts(ran, actor_update=same, actor_compute_log_prob=same)
    moves = with_layouts(own, actor_update={"offload": True})
    hosts = FrozenDict({"actor": TrainerOptions(host_optimizer=1.0)})
    steps = replace(own, plan=replace(own.plan, job=replace(own.plan.job, trainers=hosts)))
    both = ("update_actor", "old_log_prob")
    words = {
        name: slow_stage(tmp_path, plan, steps_of(expected, "verl", slow, 30), "update_actor").causes[0]
        for name, plan, slow in (
            ("alone", own, both[:1]), ("moves", moves, both[:1]), ("steps", steps, both[:1]), ("both", own, both)
        )
    }  # fmt: skip
    assert words["alone"].startswith("update alone: it takes")
    assert words["moves"].startswith("offload: it takes")
    assert words["steps"].startswith("offload: it takes")
    assert "forward passes" not in words["both"]


@pytest.mark.parametrize(("left", "first"), [(0.4, "generation: "), (1000.0, "waiting: ")])
def test_what_explains_most_of_a_slow_step_is_named_first(ran, expected, tmp_path, left, first):
    rows = steps_of(expected, "verl", ("generation",))
    for row in rows:
        row[KEYS["verl"]["step"]] += left
    write_console(tmp_path / "log", "verl", rows)
    assert check_steps(tmp_path / "log", ran).step.causes[0].startswith(first)


def test_a_step_without_its_stages_asks_for_them(ran, expected, tmp_path):
    keys = KEYS["verl"]
    names = (keys["step"], *(keys[each] for each in MEAN))
    rows = [
        {name: 10 * row[name] if name == names[0] else row[name] for name in names}
        for row in steps_of(expected, "verl")
    ]
    write_console(tmp_path / "log", "verl", rows)
    (cause,) = check_steps(tmp_path / "log", ran).step.causes
    assert cause.startswith("the log has the step alone")


def test_states_that_move_are_a_cause_only_where_ten_times_as_long_matters(ran, expected, tmp_path):
    moves = with_layouts(ran, actor_update={"offload": True})
    costs = {each.name: each.parts for each in simulate(moves.plan, moves.facts).costs}
    copied = sum(costs["actor.update"][part] for part in (STATES_AWAY, STATES_BACK))
    named = {
        times: any(
            each.startswith("offload: ")
            for each in slow_stage(
                tmp_path,
                moves,
                steps_of(expected, "verl", ("update_actor",), times),
                "update_actor",
            ).causes
        )
        for times in (4, 2000)
    }
    assert 36 * copied > 3 * expected["update_actor"]
    assert 36 * copied < 1000 * expected["update_actor"]
    assert named == {4: True, 2000: False}


def test_a_replica_on_more_gpus_than_pays_is_a_cause_before_the_tail(ran, expected, tmp_path):
    generate = ran.plan.tasks["actor.generate"]
    wide = with_layouts(ran, actor_generate={"tp": 4, "dp": generate.tp * generate.dp // 4})
    rows = steps_of(expected, "verl", ("generation",), 15)
    for row in rows:
        row |= {"response_length/max": 2400, "response_length/clip_ratio": 0.04}
    slow = slow_stage(tmp_path, wide, rows, "generation")
    assert [each.partition(":")[0] for each in slow.causes][:2] == ["engine size", "tail"]
    assert "a replica has 4 GPUs (TP); with 1 generation is forecast to take" in slow.causes[0]
    usual = slow_stage(tmp_path, ran, rows, "generation")
    assert not any(each.startswith("engine size") for each in usual.causes)


def test_replicas_that_read_prompts_alone_are_not_counted_among_those_that_run(
    ran, expected, tmp_path
):
    job = replace(ran.plan.job, prefill=PrefillApart(replicas=3))
    apart = replace(ran, plan=replace(ran.plan, job=job))
    rows = steps_of(expected, "verl", ("generation",), 30)
    slow = slow_stage(tmp_path, apart, rows, "generation")
    assert "as if each of 5 replicas ran" in slow.causes[0]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (8.5, "as if each of 8 replicas ran"),
        (250, "of 8 replicas ran one sequence at a time"),
        (5000, "longer than if one sequence ran at a time in all"),
    ],
)
def test_engines_that_are_hardly_asked_are_a_cause(ran, expected, tmp_path, times, words):
    slow = slow_stage(
        tmp_path, ran, steps_of(expected, "verl", ("generation",), times), "generation"
    )
    assert slow.causes[0].startswith("few running: ")
    assert words in slow.causes[0]


def test_a_normal_stage_is_told_by_what_another_layout_takes_a_tenth_of_the_step_less(
    ran, expected, tmp_path
):
    small = with_layouts(ran, actor_update={"micro_batch": 1, "token_budget": None})
    costs = {each.name: each.seconds for each in simulate(small.plan, small.facts).costs}
    rows = steps_of(expected | {"update_actor": costs["actor.update"]}, "verl")
    found = slow_stage(tmp_path, small, rows, "update_actor")
    assert (found.verdict, found.causes) == ("normal", ())
    assert found.tries[0].startswith("actor.update: micro_batch 4 (")
    lines = verdict_lines(check_steps(tmp_path / "log", small))
    assert any(
        each.startswith("normal: update_actor takes what its settings take") for each in lines
    )
    assert not slow_stage(tmp_path, ran, steps_of(expected, "verl"), "update_actor").tries


def test_states_that_a_weight_syncs_timer_mostly_holds_are_its_first_cause(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 1 --colocate "
        "--hf-checkpoint Qwen/Qwen3-0.6B --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 512 "
        "--global-batch-size 256 --advantage-estimator grpo --use-dynamic-batch-size --max-tokens-per-gpu 9216 "
        "--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.5 --num-rollout 10\n"
    )
    options = replace(OPTIONS, gpu="l40s", mean_response=120.0, mean_prompt=100.0)
    found = imported("slime", [str(script)], options)
    facts = load_facts(found.resolved)
    own = RunContext(plan=complete(found.draft, found.resolved, facts), facts=facts)
    told = {}
    for sleeps in (30.0, 1.0):
        rows = [
            {"perf/rollout_time": 2.4},
            {"rollout/response_lengths": 120.0, "rollout/total_lengths": 220.0},
            {"perf/step_time": 60.0, "perf/sleep_time": sleeps, "perf/update_weights_time": 31.0 - sleeps,
             "perf/actor_train_time": 2.0, "perf/log_probs_time": 0.6},
        ]  # fmt: skip
        lines = [
            f"{'rollout' if 'rollout/total_lengths' in row else 'perf'} {step}: {row}"
            for step in range(3)
            for row in rows
        ]
        (tmp_path / "log").write_text("\n".join(lines) + "\n")
        (sync,) = [e for e in check_steps(tmp_path / "log", own).stages if e.name == "weight_sync"]
        assert sync.verdict == "slow"
        told[sleeps] = [each.partition(":")[0] for each in sync.causes]
    assert told == {30.0: ["offload", "weight sync"], 1.0: ["weight sync"]}


def test_a_replica_of_fewer_gpus_is_tried_where_generation_is_slow(ran, expected, tmp_path):
    tasks = ran.plan.tasks
    generate = tasks["actor.generate"]
    wide = replace(generate, tp=4, dp=generate.tp * generate.dp // 4)
    own = replace(ran, plan=replace(ran.plan, tasks=tasks.with_item("actor.generate", wide)))
    write_console(tmp_path / "log", "verl", steps_of(expected, "verl", ("generation",), 15))
    found = check_steps(tmp_path / "log", own)
    (slow,) = [each for each in found.stages if each.name == "generation"]
    fewer = tuple(f"actor.generate: tp {size} " for size in (1, 2))
    assert any(each.startswith(fewer) for each in slow.tries), slow.tries


def test_stages_are_compared_at_the_lengths_that_were_measured(ran, expected, tmp_path):
    steps = steps_of(expected, "verl")
    for row in steps:
        row["response_length/mean"] = 3000
    write_console(tmp_path / "log", "verl", steps)
    found = check_steps(tmp_path / "log", ran)
    (generation,) = [each for each in found.stages if each.name == "generation"]
    assert generation.verdict == "fast"
    assert any(
        "responses of 600 tokens on average, the log of 3,000" in each for each in found.notes
    )


def test_a_step_is_forecast_with_the_batches_of_generation_that_its_log_has(
    ran, expected, tmp_path
):
    """Groups of equal rewards are sampled again three times, where one and a half rounds are usual."""
    again = replace(ran.plan, job=replace(ran.plan.job, dynamic_sampling=DynamicSampling()))
    rows = [row | {"train/num_gen_batches": 3} for row in steps_of(expected, "verl")]
    write_console(tmp_path / "log", "verl", rows)
    seconds = {}
    for name, plan in (("once", ran.plan), ("again", again)):
        found = check_steps(tmp_path / "log", replace(ran, plan=plan))
        (generation,) = [each for each in found.stages if each.name == "generation"]
        seconds[name] = generation.forecast_seconds
        (note,) = [each for each in found.notes if each.startswith("groups: ")]
        assert ("as the log has them" in note) == (name == "again")
    assert seconds["again"] > 2 * seconds["once"]


# Measured over forecast, as natural logarithms, of the published rows of rl_steps.csv that have stages.
PUBLISHED = (
    {"generation": -0.03, "old_log_prob": -0.17, "reference": -0.08, "values": -0.11,
     "update_critic": -0.22, "update_actor": -0.12},
    {"generation": 0.22, "old_log_prob": -0.11, "update_actor": -0.12, "weight_sync": 0.12},
    {"generation": -0.17, "old_log_prob": 0.64, "update_actor": 0.26, "weight_sync": 0.38},
    {"generation": 0.01, "log_probs": 0.06, "update_actor": 0.09, "weight_sync": 0.03},
    {"generation": -0.03, "log_probs": 0.03, "update_actor": 0.04, "weight_sync": 0.50},
    {"generation": 0.01, "log_probs": -0.14, "update_actor": 0.05, "weight_sync": -0.41},
)  # fmt: skip


@pytest.mark.parametrize("ratios", PUBLISHED)
def test_published_steps_are_normal_and_a_stage_of_theirs_that_takes_much_longer_is_not(
    ratios,
):
    def odd(measured):
        ranges = normal_ranges(measured, {name: site_spread(name) for name in measured})
        return {n for n, (low, high) in ranges.items() if not low <= measured[n][0] <= high}

    usual = {name: (math.exp(ratio), 1.0) for name, ratio in ratios.items()}
    assert odd(usual) == set()
    for name in usual:
        times = 5 if name == "weight_sync" else 3.2
        slowed = usual | {name: (times * usual[name][0], 1.0)}
        assert name in odd(slowed)


@pytest.mark.parametrize("times", [0.01, 0.1, 10, 100])
def test_a_stage_that_takes_what_is_forecast_is_normal_however_far_off_the_others_are(times):
    measured = {
        "generation": (1.0, 1.0),
        "old_log_prob": (times, 1.0),
        "update_actor": (times, 1.0),
    }
    ranges = normal_ranges(measured, {name: site_spread(name) for name in measured})
    low, high = ranges["generation"]
    assert low <= 1.0 <= high


def test_a_slower_machine_widens_what_is_normal_and_moves_nothing():
    assert with_drift((8.0, 12.0), 1.5) == (8.0, 18.0)
    assert with_drift((8.0, 12.0), 0.5) == (4.0, 12.0)
    assert with_drift((8.0, 12.0), 1.0) == (8.0, 12.0)


def written(path, steps):
    write_jsonl(path, "verl", steps)
    return path


def test_validation_and_checkpoints_are_no_part_of_the_step_that_is_judged(ran, expected, tmp_path):
    steps = steps_of(expected, "verl")
    plain = check_steps(written(tmp_path / "plain.jsonl", steps), ran)
    for number, each in enumerate(steps):
        each["timing_s/generate_sequences"] = 0.9 * each["timing_s/gen"]
        if number % 2:
            each |= {"timing_s/testing": 30.0, "timing_s/save_checkpoint": 12.0}
            each["timing_s/step"] += 42.0
    found = check_steps(written(tmp_path / "apart.jsonl", steps), ran)
    measured = plain.step.measured_seconds  # what was added comes off again, but for rounding
    assert found.step.measured_seconds == pytest.approx(measured, rel=1e-12)
    assert replace(found.step, measured_seconds=measured) == plain.step
    assert found.others == pytest.approx(plain.others, rel=1e-9)
    share = sum(number % 2 for number in range(1, STEPS)) / (STEPS - 1)
    assert found.beside == {"validation": 30.0 * share, "checkpoints": 12.0 * share}
    assert any(note.startswith("steps are judged without validation") for note in found.notes)


def test_validation_that_is_timed_behind_the_step_is_not_taken_off_it(ran, expected, tmp_path):
    steps = steps_of(expected, "verl")
    plain = check_steps(written(tmp_path / "plain.jsonl", steps), ran)
    for each in steps:
        each["timing_s/testing"] = 3.0  # in no step: stages and what is between them fill it
    found = check_steps(written(tmp_path / "behind.jsonl", steps), ran)
    assert found.step == plain.step
    assert found.beside == {"validation": 3.0}


@pytest.fixture(scope="module")
def experts():
    """Return a job of a model with experts under FSDP, with a plan."""
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp",
            "models": dict.fromkeys(("actor", "reference"), "qwen3-30b-a3b"),
            "workload": {
                "prompts": 64, "samples_per_prompt": 8, "prompt_tokens": 155, "response_tokens": 600, "updates": 2,
            },
            "cluster": [{"gpu": "h200", "gpus_per_node": 8}],
            "rewards": {"function": "exact_match", "function_seconds_per_sample": 1e-4},
        },
        "job",
    )  # fmt: skip
    job = resolve_job(job, Path())
    facts = load_facts(job)
    pools = [{"gpus": 8, "roles": ["actor", "reference"]}]
    draft = decode(PlanDraft, {"job": "job.yaml", "pools": pools}, "plan")
    return RunContext(plan=complete(draft, job, facts), facts=facts)


@pytest.mark.full
def test_a_loop_over_experts_and_an_eager_engine_are_named_first_where_stages_take_as_long(
    experts, tmp_path
):
    trainers = {role: TrainerOptions(experts="one by one") for role in ("actor", "reference")}
    tasks = experts.plan.tasks
    generate = replace(tasks["actor.generate"], engine=f"{tasks['actor.generate'].engine}-eager")
    slow = replace(
        experts.plan,
        job=replace(experts.plan.job, trainers=FrozenDict(trainers)),
        tasks=tasks.with_item("actor.generate", generate),
    )
    costs = {cost.name: cost.seconds for cost in simulate(slow, experts.facts).costs}
    seconds = {
        stage: sum(costs.get(task, 0.0) for task in tasks) for stage, tasks in STAGE_TASKS.items()
    }
    found = check_steps(written(tmp_path / "slow.jsonl", steps_of(seconds, "verl")), experts)
    causes = {stage.name: stage.causes for stage in found.stages}
    assert causes["update_actor"][0].startswith("expert loop: ")
    # The sync of weights, which this log times apart, is no part of what generation would take without CUDA graphs.
    assert causes["generation"][0].startswith("eager engine: ")


def test_validation_and_checkpoints_stand_beside_their_forecast(ran, expected, tmp_path):
    rows = steps_of(expected, "verl")
    rows[2] |= {"timing_s/testing": 30.0, "timing_s/save_checkpoint": 60.0}
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    asked = Checkpoints(every=20, node_bytes_per_second=1e9)
    job = replace(ran.plan.job, evaluation=Evaluation(prompts=64, every=5), checkpoints=asked)
    found = check_steps(log, replace(ran, plan=replace(ran.plan, job=job)), warmup=0)
    beside = simulate(replace(ran.plan, job=job), ran.facts).beside
    # One of each in five steps, measured and by forecast.
    assert found.beside == {"validation": 6.0, "checkpoints": 12.0}
    for name, seconds in found.beside_forecast.items():
        assert seconds == pytest.approx(beside.each_seconds[name] / 5)
    rows_of = {row[0]: row for row in step_check_table(found).rows}
    assert rows_of["checkpoints, beside it"][1] == "12.00 s"
    assert (
        rows_of["checkpoints, beside it"][3] == f"{12 / found.beside_forecast['checkpoints']:.2f}"
    )
    assert any("were written at" in note for note in found.notes)

    silent = check_steps(log, ran, warmup=0)
    assert not silent.beside_forecast
    assert (
        "validation: no forecast, since the job does not speak of it (evaluation)" in silent.notes
    )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("fully_async/trainer/idle_ratio", "idle trainer: 45% of a step training waits"),
        ("fully_async/rollouter/idle_ratio", "idle engine: 45% of a step generation stands still"),
    ],
)
def test_the_side_that_stands_still_beside_the_other_is_named(ran, expected, tmp_path, key, words):
    job = ran.plan.job
    pools = [
        {"name": "train", "gpus": 4, "roles": ["actor", "reference"]},
        {"name": "rollout", "gpus": 4, "roles": ["actor"]},
    ]
    tasks = {"actor.generate": {"pool": "rollout", "tp": 1, "dp": 4, "max_running": 256}}
    text = {"job": "job.yaml", "pools": pools, "tasks": tasks, "mode": "async", "staleness": 1}
    plan = complete(decode(PlanDraft, text, "plan"), job, ran.facts)
    rows = [{**row, key: 0.45} for row in steps_of(expected, "verl")]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    found = check_steps(log, replace(ran, plan=plan))
    told = (*found.notes, *(found.step.causes if found.step else ()))
    assert sum(note.startswith(words) for note in told) == 1
    sync = check_steps(log, ran)
    assert not any("stands still" in note or "training waits" in note for note in sync.notes)


def test_what_environments_add_is_in_micro_batches_too(ran, expected, tmp_path):
    # The log's 755 tokens of a sequence hold 100 of an environment; of the model's own 655 two would be in a budget of 1,400.
    environment = Environment(name="e", turns=2, observation_tokens=100, step_seconds=0.0)
    work = replace(ran.plan.job.workload, environments=(environment,))
    tasks = ran.plan.tasks
    update = replace(tasks["actor.update"], token_budget=1400)
    plan = replace(
        ran.plan,
        job=replace(ran.plan.job, workload=work),
        tasks=tasks.with_item("actor.update", update),
    )
    write_console(tmp_path / "log", "verl", steps_of(expected, "verl", ("update_actor",), 12))
    found = check_steps(tmp_path / "log", replace(ran, plan=plan))
    (slow,) = [each for each in found.stages if each.name == "update_actor"]
    assert any("1,400 tokens a micro-batch, of sequences of 755" in each for each in slow.causes)


def test_a_log_of_another_framework_than_the_plan_s_is_told(ran, expected, tmp_path):
    write_console(tmp_path / "log", "verl", steps_of(expected, "verl"))
    # EasyR1, a fork, writes such lines too.
    for name, told in (("rlplan", 1), ("slime", 1), ("easyr1", 0), ("verl-fsdp-0.5", 0)):
        plan = replace(ran.plan, job=replace(ran.plan.job, framework=name))
        notes = check_steps(tmp_path / "log", replace(ran, plan=plan)).notes
        assert sum(each.startswith("framework: the log is verl's") for each in notes) == told
