"""Imports: the front door answers at once, and planning needs no torch."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from rlplan.results.stored import write_plan
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.house.tree import ROOT

HEAVY = ("torch", "ray", "transformers", "vllm", "pandas", "scipy", "matplotlib")
EXECUTION_ONLY = ("torch", "ray", "transformers", "vllm", "safetensors", "tensorboard")


# What only a search, or an answer that looks for another plan, needs.
SEARCHES = (
    "rlplan.planner.exact",
    "rlplan.planner.search",
    "rlplan.planner.answers.explain",
    "rlplan.planner.layouts",
)
# Of ours that the forecast of a complete plan enters functions of, and its deepest stack of functions of ours.
MOST_FILES = 92
MOST_FRAMES = 28
# What only a run reads its data and storage with.
DATA_OF_RUNS = ("fsspec", "filelock", "rlplan.executor.data.prompts")


def run(program: str) -> str:
    """Return what a fresh interpreter prints; its complaint is the failure."""
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def test_importing_the_front_door_loads_nothing_heavy():
    program = f"import sys, rlplan_cli.main; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(program).strip() == "[]"


def test_help_loads_nothing_heavy():
    program = (
        "import sys\n"
        "sys.argv = ['rlplan', '--help']\n"
        "from rlplan_cli.main import main\n"
        "try:\n"
        "    code = main()\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert not code, code\n"
        f"print([m for m in {HEAVY} if m in sys.modules])\n"
    )
    help_text, loaded = run(program).strip().rsplit("\n", 1)
    assert "simulate" in help_text
    assert loaded == "[]"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Return what `rlplan simulate` of a complete plan visits and loads, in a fresh interpreter."""
    file = tmp_path_factory.mktemp("plans") / "plan.yaml"
    write_plan(file, make_plan(make_job(), {"p0": (2, ALL_ROLES)}))
    program = [sys.executable, str(ROOT / "tests" / "house" / "visited.py"), "simulate", str(file)]
    answer = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout.rstrip().rsplit("\n", 1)[1])


def test_simulating_a_complete_plan_loads_nothing_of_the_search_nor_of_runs(simulated):
    assert [m for m in simulated["modules"] if m.startswith((*SEARCHES, *DATA_OF_RUNS))] == []


def test_a_forecast_is_followed_through_few_files_and_functions(simulated):
    """Bounds are what is there: lower them where a change needs less.

    `python tests/house/visited.py simulate PLAN` prints both counts, then the files and the deepest stack as JSON.
    """
    files, deepest = simulated["files"], simulated["deepest"]
    assert len(files) <= MOST_FILES, "\n".join(files)
    assert len(deepest) <= MOST_FRAMES, "\n".join(deepest)


def test_processes_that_run_rules_start_without_torch():
    program = (
        "import sys\n"
        "from rlplan.executor.workers.host_worker import HostWorker, STAGES\n"
        "STAGES.load('rule')\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    assert run(program).strip() == "[]"


def test_planning_rooms_import_without_torch_ray_vllm_and_transformers():
    program = (
        "import importlib, pkgutil, sys\n"
        f"for blocked in {EXECUTION_ONLY}:\n"
        "    sys.modules[blocked] = None\n"
        "def walk(name):\n"
        "    if name == 'rlplan.profiles.probes' or name.startswith('rlplan.profiles.probes.'):\n"
        "        return\n"
        "    module = importlib.import_module(name)\n"
        "    for found in pkgutil.iter_modules(getattr(module, '__path__', [])):\n"
        "        if (name, found.name) != ('rlplan', 'executor'):\n"
        "            walk(f'{name}.{found.name}')\n"
        "for package in ('rlplan', 'rlplan_cli'):\n"
        "    walk(package)\n"
        "print('imported')\n"
    )
    assert run(program).strip() == "imported"


def test_no_other_distribution_owns_one_of_our_names():
    owners = importlib.metadata.packages_distributions()
    assert set(owners["rlplan"]) == set(owners["rlplan_cli"]) == {"rlplan"}
