"""EasyR1's logs: its console's YAML documents, its own JSON lines, and that verl's are not taken for them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.calibration import STAGE_TASKS
from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.measured.checking import RunContext, check_steps
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_rules_of_easyr1 import EASYR1

RAY = "\x1b[36m(Runner pid=812)\x1b[0m "
OTHER = "\x1b[36m(FSDPWorker pid=813, ip=10.0.0.2)\x1b[0m Compute log probs:  50%|█████     | 4/8"
FIGURES = {
    "timing_s/step": 61.4, "timing_s/gen": 22.5, "timing_s/reward": 0.1, "timing_s/old": 6.25, "timing_s/ref": 6.1,
    "timing_s/adv": 0.7, "timing_s/update_actor": 25.5, "prompt_length/mean": 402.0, "response_length/mean": 251.5,
    "response_length/max": 2048.0, "response_length/clip_ratio": 0.004, "actor/pg_loss": -0.012, "critic/rewards/mean": 0.6,
    "perf/throughput": 1650.0, "perf/mfu_actor": 0.16,
}  # fmt: skip
STAGES = {"generation": 22.5, "old_log_prob": 6.25, "reference": 6.1, "update_actor": 25.5}


def nested(figures):
    """Return figures as EasyR1 nests them by the slashes of their keys."""
    tree = {}
    for key, value in figures.items():
        *parents, last = key.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def document(tree, depth=0):
    """Return nested figures as lines of YAML, sorted as EasyR1 prints them."""
    for name, value in sorted(tree.items()):
        if isinstance(value, dict):
            yield f"{'  ' * depth}{name}:"
            yield from document(value, depth + 1)
        else:
            yield f"{'  ' * depth}{name}: {value}"


def console(steps, process=RAY, between=()):
    """Return what a console shows of some steps, lines of others between them."""
    lines = [f"{process}Config", f"{process}algorithm:", f"{process}  gamma: 1.0"]
    for number, figures in enumerate(steps, 1):
        lines += [f"{process}Start generating batch...", f"{process}Step {number}"]
        for line in document(nested(figures)):
            lines += [f"{process}{line}", *between]
        lines.append(f"{process}")
    return "\n".join(lines) + "\n"


def json_lines(steps):
    """Return the lines of `experiment_log.jsonl`."""
    rows = (json.dumps({"step": number, **nested(each)}) for number, each in enumerate(steps, 1))
    return "".join(f"{row}\n" for row in rows)


def read(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_log(path)


WAYS = {
    "console": console,
    "console among workers": lambda steps: console(steps, between=[OTHER]),
    "console of one process": lambda steps: console(steps, process="", between=[OTHER, ""]),
    "json lines": json_lines,
    "a tracker's JSON lines": lambda steps: "".join(f"{json.dumps(each)}\n" for each in steps),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_read_whatever_shows_them(tmp_path, way):
    log = read(tmp_path, WAYS[way]([FIGURES] * 4))
    assert (log.sheet.name, log.steps) == ("easyr1", 3)
    assert dict(log.stage_seconds) == STAGES
    assert (log.step_seconds, log.prompt_tokens, log.response_tokens) == (61.4, 402.0, 251.5)
    assert (log.longest_response, log.clip_ratio) == (2048.0, 0.004)
    assert dict(log.other_seconds) == {"reward": 0.1, "adv": 0.7}


def test_a_log_of_verl_is_not_taken_for_one_of_easyr1(tmp_path):
    verl = {
        ("timing_s/old_log_prob" if key == "timing_s/old" else key): value
        for key, value in FIGURES.items()
    }
    lines = (
        f"step:{number} - " + " - ".join(f"{key}:{value}" for key, value in verl.items())
        for number in range(1, 5)
    )
    assert read(tmp_path, "\n".join(lines) + "\n").sheet.name == "verl"


def test_a_step_that_is_cut_off_is_left_out(tmp_path):
    text = console([FIGURES] * 4)
    log = read(tmp_path, text[: text.rindex("timing_s:")])
    assert log.steps == 2


def test_what_is_no_step_is_refused(tmp_path):
    with pytest.raises(FileError, match="holds no steps of a framework whose log is known"):
        read(tmp_path, f"{RAY}Step 1\n{RAY}Start validation...\n{RAY}timing_s:\n")


@given(
    seconds=st.lists(
        st.floats(0.001, 9999).map(lambda value: round(value, 3)), min_size=3, max_size=5
    )
)
def test_figures_of_a_console_are_those_that_were_printed(seconds, tmp_path_factory):
    steps = [FIGURES | {"timing_s/gen": value} for value in (1.0, *seconds)]
    log = read(tmp_path_factory.mktemp("log"), console(steps, between=[OTHER]))
    assert log.steps == len(seconds)
    assert log.stage_seconds["generation"] == pytest.approx(sorted(seconds)[len(seconds) // 2]) or (
        len(seconds) % 2 == 0
    )


@pytest.fixture(scope="module")
def ran():
    """Return the plan of a small configuration."""
    options = ImportOptions(
        gpu="h100-80gb-sxm", mean_response=251.5, mean_prompt=402, environment={}
    )
    found = imported("easyr1", EASYR1, options)
    facts = load_facts(found.resolved)
    return RunContext(plan=complete(found.draft, found.resolved, facts), facts=facts)


@pytest.mark.full
@pytest.mark.parametrize("slow", ["generation", "old_log_prob", "update_actor"])
def test_a_stage_that_is_slowed_down_is_named(ran, tmp_path, slow):
    costs = {each.name: each.seconds for each in simulate(ran.plan, ran.facts).costs}
    expected = {
        stage: sum(costs.get(task, 0.0) for task in tasks) for stage, tasks in STAGE_TASKS.items()
    }
    expected["generation"] += expected["weight_sync"]
    keys = {
        "generation": "gen",
        "old_log_prob": "old",
        "reference": "ref",
        "update_actor": "update_actor",
    }
    row = {
        f"timing_s/{key}": expected[stage] * (3.0 if stage == slow else 1.05)
        for stage, key in keys.items()
    }
    row |= {
        "timing_s/step": sum(row.values()) + 1,
        "prompt_length/mean": 402,
        "response_length/mean": 251.5,
    }
    path = Path(tmp_path / "log.txt")
    path.write_text(console([row] * 4), encoding="utf-8")
    found = check_steps(path, ran)
    assert [each.name for each in found.stages if each.verdict == "slow"] == [slow]
