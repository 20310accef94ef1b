"""`import rlplan` and `python -m rlplan`: what scripts and notebooks call, and what a notebook shows."""

import subprocess
import sys

import pytest

import rlplan
from rlplan.errors import FileError, InfeasibleError
from rlplan.plan import Plan
from rlplan_cli.main import run
from tests.house.tree import ROOT

PPO = ROOT / "examples" / "ppo-7b-16xa100.plan.yaml"


def test_importing_the_package_loads_no_room_and_every_name_is_there():
    program = (
        "import sys, rlplan\n"
        "rooms = ('rlplan.planner', 'rlplan.simulator', 'rlplan.profiles', 'rlplan.executor', 'rlplan.reports')\n"
        "assert not [m for m in sys.modules if m.startswith((*rooms, 'pandas', 'pydantic', 'typer'))]\n"
        "print([getattr(rlplan, name).__doc__ is not None for name in dir(rlplan) if name[0] != '_'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "False" not in done.stdout
    misspelt = "serch"
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        getattr(rlplan, misspelt)


def test_a_job_is_searched_and_its_plan_simulated(project):
    job = rlplan.load_job("job.yaml")
    found = rlplan.search(job, limits={"gpus": 1})
    best = found.plans[0]
    assert isinstance(best.plan, Plan)
    assert sum(pool.gpus for pool in best.plan.pools if not pool.is_host) == 1
    again = rlplan.simulate(best.plan)
    assert again.iteration_seconds == best.forecast.iteration_seconds
    assert rlplan.simulate("plan.yaml", iterations=2).feasible
    assert rlplan.load_plan("draft.yaml").pools[0].name == "p0"


@pytest.mark.full
def test_plans_and_files_are_checked_before_they_are_started(project):
    by_file, job = rlplan.check("plan.yaml"), rlplan.check("job.yaml")
    assert by_file.will_run
    assert job.will_run
    assert rlplan.check(rlplan.load_plan("plan.yaml")).forecast == by_file.forecast
    with pytest.raises(FileError, match="--gpu"):
        rlplan.check("run.sh", framework="verl")


@pytest.mark.full
def test_wrong_input_raises_what_the_command_line_would_say(project):
    with pytest.raises(FileError, match=r"did you mean 'job\.yaml'"):
        rlplan.load_job("jop.yaml")
    with pytest.raises(InfeasibleError, match=r"specs\.iteration_seconds"):
        rlplan.search("job.yaml", limits={"iteration_seconds": 1e-6})


@pytest.mark.full
def test_notebooks_get_html_and_tables(project):
    found = rlplan.search("job.yaml")
    page = found._repr_html_()
    assert page.startswith("<div>fits: ")
    assert page.count("<table>") == page.count("</table>") == 2
    plans = found.to_pandas()
    assert list(plans["iteration_seconds"]) == sorted(plans["iteration_seconds"])
    assert len(plans) == len(found.plans)
    forecast = rlplan.simulate(PPO)
    assert "actor.update" in forecast._repr_html_()
    tasks = forecast.to_pandas().set_index("task")
    assert tasks.loc["actor.update", "seconds"] > 0
    assert (tasks["p10_seconds"] <= tasks["p90_seconds"]).all()


def test_the_package_is_a_command_too():
    done = subprocess.run(
        [sys.executable, "-m", "rlplan", "--version"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"rlplan {rlplan.__version__}\n"


def test_shells_complete_commands(capsys, monkeypatch):
    monkeypatch.setenv("_RLPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rlplan sim")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        raise SystemExit(run([]))
    assert "simulate" in capsys.readouterr().out
