"""Imports: the front door answers at once, and planning needs no torch."""

import importlib.metadata
import subprocess
import sys

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


def test_simulating_a_complete_plan_loads_nothing_of_the_search_nor_of_runs(tmp_path):
    write_plan(tmp_path / "plan.yaml", make_plan(make_job(), {"p0": (2, ALL_ROLES)}))
    program = (
        "import sys\n"
        f"sys.argv = ['rlplan', 'simulate', {str(tmp_path / 'plan.yaml')!r}]\n"
        "from rlplan_cli.main import main\n"
        "try:\n"
        "    code = main()\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert not code, code\n"
        f"print([m for m in sys.modules if m.startswith({(*SEARCHES, *DATA_OF_RUNS)})])\n"
    )
    assert run(program).strip().rsplit("\n", 1)[1] == "[]"


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
