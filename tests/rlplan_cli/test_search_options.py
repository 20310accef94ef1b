import re

import pytest
import yaml

from tests.cases import only
from tests.rlplan_cli.conftest import change

SIMULATE = ["simulate", "plan.yaml"]
EXECUTE = ["execute", "plan.yaml", "--out", "new"]


def widened(project):
    """Let the small job choose among four devices."""
    change("job.yaml", "cluster", to=[{"gpu": "cpu", "gpus_per_node": 4}])
    change("job.yaml", "workload", "prompts", to=64)


@pytest.mark.full
def test_an_objective_and_limits_of_the_command_line_are_kept_and_written_into_the_plan(
    project, rlplan
):
    widened(project)
    answer = rlplan(
        "search", "job.yaml", "--objective", "cost", "--max-gpus", "2", "--spec",
        "memory_headroom_fraction=0.1", "--out", "found.yaml", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    best = answer.json["plans"][0]
    assert sum(pool["gpus"] for pool in best["plan"]["pools"] if pool["device"] != "host") <= 2
    fullest = max(m["gpu_peak_bytes"] / m["capacity_bytes"] for m in best["forecast"]["memory"])
    assert fullest <= 0.9
    job = yaml.safe_load((project / "found.yaml").read_text())["job"]
    assert job["objective"] == "cost"
    assert job["specs"]["gpus"] == 2
    assert rlplan("simulate", "found.yaml", "--json").code == 0


def test_a_jobs_own_objective_and_specs_count_where_the_command_line_says_nothing(project, rlplan):
    widened(project)
    change("job.yaml", "objective", to="cost")
    change("job.yaml", "specs", to={"gpus": 1})
    answer = rlplan("search", "job.yaml")
    assert answer.code == 0, answer.err
    assert "USD/M tokens" in answer.out
    assert "1 cpu {actor, critic, reference, reward}" in answer.out
    assert "USD/M tokens, " in answer.err


def test_the_time_to_a_score_is_told_with_what_it_assumes(project, rlplan):
    answer = rlplan(
        "search", "job.yaml", "--objective", "time-to-score", "--mode", "one-step-off", "--steps",
        "40", "--why", "--out", "found.yaml",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "score: as far as a step on fresh samples in " in answer.out
    assert "40 fresh-equivalent steps in " in answer.out
    assert "Fresh tokens/s" in answer.out
    assert re.search(r"[0-9] fresh tokens/s, ", answer.err)
    assert not re.search(r"[0-9] Fresh", answer.out + answer.err)
    assert "on samples 1.00 steps old get as far as one on fresh samples, with no correction" in answer.err  # fmt: skip
    again = rlplan("simulate", "found.yaml", "--json").json
    assert again["progress"]["mean_age"] == 1
    assert again["progress"]["needed_iterations"] == pytest.approx(1.114)
    change("found.yaml", "job", "objective", to="throughput")
    plain = rlplan("simulate", "found.yaml", "--json").json
    assert plain.get("progress") is None
    assert plain["iteration_seconds"] == again["iteration_seconds"]


@pytest.mark.full
@pytest.mark.parametrize("command", ["search", "simulate"])
def test_an_unknown_objective_of_a_job_is_refused_with_the_nearest(project, rlplan, command):
    assert rlplan("search", "job.yaml", "--out", "plan.yaml").code == 0
    change("job.yaml", "objective", to="costs")
    change("plan.yaml", "job", "objective", to="costs")
    file, field = (
        ("job.yaml", "objective") if command == "search" else ("plan.yaml", "job.objective")
    )
    answer = rlplan(command, file)
    assert answer.code == 2
    assert f"{file}: {field}: is no objective" in answer.err
    assert "did you mean 'cost'" in answer.err


@pytest.mark.full
def test_specs_that_no_plan_keeps_say_which_binds_and_the_nearest_value(project, rlplan):
    answer = rlplan("search", "job.yaml", "--max-iteration-seconds", "0.0001")
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert "specs.iteration_seconds (at most 0.0001 s) would have to be" in answer.err
    nearest = answer.err.rpartition("would have to be ")[2].split()[0]
    assert rlplan("search", "job.yaml", "--max-iteration-seconds", nearest).code == 0


@pytest.mark.full
def test_a_front_is_printed_stored_and_drawn_and_its_ends_are_the_single_optima(project, rlplan):
    widened(project)
    (project / "page").mkdir()
    for name in ("front.html", *(f"plan-{number}.yaml" for number in range(1, 40))):
        (project / "page" / name).write_text("of a longer front, before")
    answer = rlplan(
        "search", "job.yaml", "--pareto", "throughput,cost", "--plot", "front.svg",
        "--result", "front.json", "--report", "page", "--steps", "50", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    front = answer.json
    assert all(point["candidate"]["forecast"]["run"]["steps"] == 50 for point in front["points"])
    page = (project / "page" / "front.html").read_text()
    assert "Whole runs" in page
    assert len(list((project / "page").glob("plan-*.yaml"))) == len(front["points"])
    assert front["objectives"] == ["throughput", "cost"]
    assert (project / "front.svg").read_text().count("<svg") == 1
    assert (project / "front.json").exists()
    points = [point["values"] for point in front["points"]]
    assert [p["throughput"] for p in points] == sorted(p["throughput"] for p in points)
    assert [p["cost"] for p in points] == sorted((p["cost"] for p in points), reverse=True)
    fastest = rlplan("search", "job.yaml", "--json").json["plans"][0]["forecast"]
    cheapest = rlplan("search", "job.yaml", "--objective", "cost", "--json").json["plans"][0]
    ends = [each["candidate"]["forecast"] for each in (front["points"][0], front["points"][-1])]
    assert ends[0]["iteration_seconds"] == fastest["iteration_seconds"]
    assert ends[1]["cost_usd"] == cheapest["forecast"]["cost_usd"]
    table = rlplan("search", "job.yaml", "--pareto", "throughput,cost").out
    assert "Plans that no other beats in throughput and cost" in table


@pytest.mark.full
def test_generation_may_run_ahead_only_where_it_is_asked_for(project, rlplan):
    modes = {
        mode: {
            each["plan"]["mode"]
            for each in rlplan("search", "job.yaml", "--mode", mode, "--json").json["plans"]
        }
        for mode in ("sync", "one-step-off")
    }
    assert modes["sync"] == {"sync"}
    assert "one-step-off" in modes["one-step-off"]


def test_wrong_options_are_refused_in_one_line(project, rlplan):
    for arguments, said in (
        (("--objective", "speed"), "unknown objective 'speed'"),
        (("--objective", "costs"), "did you mean 'cost'"),
        (("--pareto", "throughput"), "two or three different objectives"),
        (("--pareto", "throughput,costs"), "did you mean 'cost'"),
        (("--spec", "gpu=3"), "--spec: gpu: unknown key"),
        (("--spec", "gpus"), "found 'gpus'; allowed: NAME=VALUE"),
        (("--max-gpus", "0"), "gpus"),
        (("--plot", "front.svg"), "with --pareto only"),
        (("--lend", "--for", "verl"), "--lend: finds plans that no framework's settings can say"),
        (("--plot", "front.png", "--pareto", "throughput,cost"), "a name ending in .svg"),
    ):
        answer = rlplan("search", "job.yaml", *arguments)
        assert (answer.code, len(answer.lines)) == (2, 1), answer.err
        assert said in answer.err, answer.err


@pytest.mark.parametrize(
    ("name", "limit", "command"),
    only(
        [("gpus", 1, SIMULATE), ("iteration_seconds", 1e-6, EXECUTE)],
        [
            (*limit, command)
            for command in (SIMULATE, EXECUTE)
            for limit in (
                ("gpus", 1),
                ("iteration_seconds", 1e-6),
                ("memory_headroom_fraction", 0.99999),
            )
        ],
    ),
)
def test_a_whole_plan_that_breaks_a_limit_of_its_job_is_not_passed_over(
    project, rlplan, command, name, limit
):
    change("plan.yaml", "job", "specs", to={name: limit})
    answer = rlplan(*command)
    assert answer.code == 2
    assert f"breaks a limit: specs.{name} is {limit}, this plan has " in answer.err
    assert not (project / "new").exists()
