"""One small test of each kind of failure that mutated inputs found, so that it stays mended."""

import json
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplan.errors import FileError, InfeasibleError
from rlplan.evals.reading import held_tables, read_table
from rlplan.executor.control.metrics import read_metrics
from rlplan.files.decoding import decode
from rlplan.job import Job
from rlplan.planner.answers.explain import MEMORY_STEPS, least_misfit
from rlplan.planner.answers.fitting import FitRequest, fit
from rlplan.planner.configs.reading.composed import read_inherited
from rlplan.planner.configs.shell.script import evaluate
from rlplan.planner.exact.placement_bounds import PlacementBounds
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.trackers import events_by_step
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.jobs.config.reading import read_hf_config
from rlplan_cli.main import run as run_cli
from tests.effort import calls_of
from tests.rlplan_cli.conftest import JOB

FAMILIES = Path(__file__).parents[1] / "profiles" / "family_configs.json"


def config_of(family, tmp_path, **changes):
    """Write a published config with changes, in `vision_config` those of `vision`."""
    config = json.loads(FAMILIES.read_text())[family]
    config["vision_config"] = config.get("vision_config", {}) | changes.pop("vision", {})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | changes))
    return path


@pytest.mark.parametrize(
    ("script", "refusal"),
    [
        ("f() { f; }; f", "call each other"),
        ("A=x\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do A=$A$A; done", "grows beyond"),
        ("A=(x)\nfor i in {1..18}; do B=1; done\n" + 'A=("${A[@]}" "${A[@]}")\n' * 18, "grows beyond"),
        ("f() { " + "X=1; " * 200 + "}\n" + "f\n" * 110, "statements"),
    ],
)  # fmt: skip
def test_a_script_that_does_not_end_or_grows_without_bound_is_refused(script, refusal):
    assert refusal in evaluate(script).refusal[1]


@pytest.mark.parametrize(
    "script", ["A=1 &&", "[ 1 = 1 ] && # only", "A=${", "f() {", "a && ; b", "A=$'\\x'"]
)
def test_a_script_that_is_broken_off_is_read_as_far_as_it_goes(script):
    found = evaluate(f"python3 -m known\n{script}")
    assert found.commands[0].words[-1].value == "known"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2**62", 2**62), ("2**63", -(2**63)), ("1<<65", 2), ("010", 8), ("9223372036854775807+1", -(2**63)), ("0x10", 16)],
)  # fmt: skip
def test_arithmetic_has_the_64_bits_of_a_shell(expression, value):
    (command,) = evaluate(f"run $(({expression}))").commands
    assert command.words[1].value == str(value)


@pytest.mark.parametrize("expression", ["2**-1", "08", "9" * 5000, "1?2", "16#ff"])
def test_what_is_no_arithmetic_is_named(expression):
    (command,) = evaluate(f"run $(({expression}))").commands
    assert command.words[1].gaps


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vision": {"spatial_merge_size": []}}, "vision_config.spatial_merge_size: must be a whole number"),
        ({"vision": {"patch_size": 0}}, "vision_config.patch_size: must be at least 1"),
        ({"vision": {"merge_kernel_size": ["a"]}}, "vision_config.merge_kernel_size"),
        ({"vision": {"hidden_size": 2**31 - 1}}, "parameters"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: is more than any model has"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: must be at least 1"),
        ({"hidden_size": 2**60}, "hidden_size: is larger than any"),
        ({"hidden_size": 4_096_000}, "hidden_size: is too large; found 4096000; allowed: at most 262,144"),
        ({"hidden_size": 2**20, "intermediate_size": 2**30}, "intermediate_size: gives about"),
        ({"rope_theta": float("inf")}, "rope_theta"),
    ],
)  # fmt: skip
def test_sizes_that_no_model_has_are_named_by_file_and_key(tmp_path, changes, said):
    path = config_of("Qwen/Qwen3-VL-4B-Instruct", tmp_path)
    config = json.loads(path.read_text())
    nested = config.get("text_config", config)
    config["vision_config"] |= changes.get("vision", {})
    nested |= {key: value for key, value in changes.items() if key != "vision"}
    path.write_text(json.dumps(config))
    with pytest.raises(FileError, match=r"config\.json") as caught:
        read_hf_config(path)
    assert said in str(caught.value)


@pytest.mark.parametrize("first", [0, 3, len(MEMORY_STEPS) - 1, None])
def test_the_smallest_memory_that_fits_is_found_in_a_few_searches(first):
    tried = []
    least = math.inf if first is None else MEMORY_STEPS[first]

    def choose(memory):
        tried.append(memory)
        if memory < least:
            raise InfeasibleError("too small")
        return memory

    facts: Any = SimpleNamespace(with_memory=lambda step: step)
    none_fits = InfeasibleError("none")
    if first is None:
        with pytest.raises(InfeasibleError, match="none"):
            least_misfit(choose, facts, none_fits)
    else:
        assert least_misfit(choose, facts, none_fits) == least
    assert len(tried) <= 4


def test_where_memory_alone_says_what_fits_one_plan_is_chosen():
    chosen = []

    def choose(memory):
        chosen.append(memory)
        return memory

    def fits(memory):
        return memory >= least

    facts: Any = SimpleNamespace(with_memory=lambda step: step)
    none_fits = InfeasibleError("none")
    least = MEMORY_STEPS[3]
    assert least_misfit(choose, facts, none_fits, fits) == least
    assert chosen == [least]
    with pytest.raises(InfeasibleError, match="none"):
        least_misfit(choose, facts, none_fits, lambda _: False)
    assert chosen == [least]


@pytest.mark.full
def test_the_smallest_cluster_is_found_without_trying_all_of_them():
    found = fit(FitRequest(algorithm="grpo", model="qwen2.5-7b", gpu="h100", gpus=8))
    assert found.fits
    assert found.fewest_gpus <= 4


@pytest.mark.parametrize(
    "line",
    [
        "step:1 - timing_s/gen:1.2.3 - timing_s/step:.", "step:1 - timing_s/gen:1e999", '{"timing_s/step": NaN}',
        '{"timing_s/step": 1' + "0" * 400 + "}", '{"timing_s/step": ' + "[" * 100_000, "step,timing_s/step\n1," + "9" * 200_000,
        '{"timing_s/step": {"\u00b2": 1}}', "tag,value,step\n",
    ],
)  # fmt: skip
def test_a_log_with_impossible_figures_holds_no_steps(tmp_path, line):
    (tmp_path / "log").write_text((line + "\n") * 3)
    with pytest.raises(FileError, match="holds no steps"):
        read_log(tmp_path / "log")


def test_event_files_with_numbers_that_do_not_end_are_read_at_once(tmp_path):
    data = b"\xff" * 1_000_000
    record = struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)
    (tmp_path / "events.out.tfevents.1").write_bytes(record)
    assert calls_of(lambda: events_by_step(tmp_path)) < 2_000_000


def test_a_table_with_the_columns_of_two_is_refused(tmp_path):
    tables = [held for held in held_tables() if held.stem in {"realhf_iteration", "weight_sync"}]
    heads = ",".join(table.read_text().splitlines()[0] for table in tables)
    (tmp_path / "both.csv").write_text(heads + "\n")
    with pytest.raises(FileError, match="several tables"):
        read_table(tmp_path / "both.csv")


def test_a_metric_beyond_what_a_number_holds_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "loss": 1' + "0" * 400 + "}\n")
    with pytest.raises(FileError, match="line 1: loss: is larger"):
        read_metrics(tmp_path)


def test_a_cluster_has_few_groups_of_nodes():
    job = JOB | {"cluster": JOB["cluster"] * 900}
    with pytest.raises(FileError, match="cluster: has 900 groups of nodes; allowed: at most 32"):
        resolve_job(decode(Job, job, "job.yaml"), Path())


def test_a_reference_that_is_broken_off_is_named_with_its_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("a: {b: 1}\nc: ${a.b}\nd: {e: '${a.'}\n")
    flat = read_inherited(path)
    assert (flat["a.b"].value, flat["c"].value) == (1, 1)
    (gap,) = flat["d.e"].gaps
    assert (gap.line, gap.source) == (3, "${a.")


def test_a_number_of_four_hundred_digits_in_a_config_is_a_message(tmp_path):
    path = tmp_path / "nemo.yaml"
    kept = "grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 4}\n"
    path.write_text(f"{kept}loss_fn: {{reference_policy_kl_penalty: {'9' * 400}}}\n")
    answer = run_cli(
        ["check", "nemo-rl", str(path), "--gpu", "h100-80gb-sxm", "--mean-response", "300"]
    )
    assert answer == 2


@pytest.mark.parametrize("ahead", [False, True])
def test_bounds_are_numbers_where_a_plan_takes_for_ever(ahead, recwarn):
    infinite = np.array([math.inf])
    bounds: Any = SimpleNamespace(
        schedule=SimpleNamespace(staleness=2.0, sync_every=3),
        _last_share=1.0,
        _last_trained_share=1.0,
        _prepares_ahead=ahead,
    )
    sent: Any = SimpleNamespace(move=0.0, longest=1.0, shortest=0.0)
    found = PlacementBounds._streamed(bounds, infinite, infinite, infinite, sent)
    assert found == math.inf
    assert not recwarn.list
