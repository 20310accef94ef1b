"""Trials of this machine: small jobs that are profiled, planned, run and laid beside their forecasts.

Every piece of work stands in a folder of its own when it is done, and is not done again.
"""

from __future__ import annotations

import shutil
import signal
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from rlplan_cli.measuring import measure_machine
from rlplan_cli.running import compare_run, run_plan
from rlplan_cli.terminal import progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlplan.job import Job
    from rlplan.models import ModelArchitecture
    from rlplan.results.forecast import Forecast
    from rlplan.results.measurement import Comparison, MeasuredRun
    from rlplan.sheets import DeviceSheet

JOB_FILE = "job.yaml"
# Where the weights are that are made where a user names none, in the folder of all trials.
MADE_WEIGHTS = "weights"
# Device memory of a 0.5B model: bf16 weights, fp32 gradients and Adam's states are 9 GB a trained model.
MODELS = {"gpu": "qwen2.5-0.5b", "cpu": "tiny"}


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one job to try, by its algorithm and the engine that generates.

    Attributes:
        weights: Folder of the pre-trained model that its models start from; None: random weights.
    """

    algorithm: str
    engine: str
    weights: Path | None = None

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        name = f"{self.algorithm}-{self.engine}"
        return name if self.weights is None else f"{name}-from-{self.weights.name}"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Hold what came of a trial."""

    trial: Trial
    forecast: Forecast
    run: MeasuredRun
    comparison: Comparison


class TimeUpError(Exception):
    """The time that was given is over; what was done stays."""


def device_here(wanted: str | None) -> tuple[str, int]:
    """Return the device sheet of this machine and how many of its devices to use: one GPU, or two cores.

    Args:
        wanted: The sheet that the user names; None takes the one of torch's first GPU.

    Raises:
        UnknownNameError: No sheet is of this GPU, or of that name.
    """
    import torch

    from rlplan.profiles.sheets import load_device, sheet_of_board

    if wanted is not None:
        sheet = load_device(wanted)
    elif torch.cuda.is_available():
        _, memory_bytes = torch.cuda.mem_get_info(0)
        sheet = sheet_of_board(torch.cuda.get_device_name(0), memory_bytes)
    else:
        sheet = load_device("cpu")
    return sheet.name, 1 if sheet.kind == "gpu" else 2


def trials_here(weights: Path) -> tuple[Trial, ...]:
    """Return the trials that can run here: vLLM's where it is installed.

    Args:
        weights: Folder of the pre-trained model that one of them starts from.
    """
    engines = ("torch-static", *(("vllm",) if find_spec("vllm") is not None else ()))
    drawn = [Trial(algorithm, each) for each in engines for algorithm in ("ppo", "grpo")]
    return (*drawn[:2], Trial("grpo", engines[0], weights), *drawn[2:])


def weights_here(given: Path | None, out: Path, sheet: DeviceSheet) -> Path:
    """Return the folder of a pre-trained model: the one that the user names, or one that is made now, once.

    Raises:
        FileError: The user's folder holds no model, or one that does not run here; or the trials in `out` started
            from another one.
    """
    from rlplan.errors import FileError
    from rlplan.executor.model.building import read_config, write_model
    from rlplan.files.decoding import load_yaml
    from rlplan.models import CONFIG_FILE, WEIGHT_FILES
    from rlplan.profiles.jobs.checks import has_weights
    from rlplan.profiles.jobs.config.reading import read_hf_config

    made = (out / MADE_WEIGHTS).resolve()
    if given is None:
        write_model(made, _small_model(sheet), seed=0)
        return made
    folder = given.expanduser().resolve()
    if not has_weights(folder):
        problem = f"is no folder with {CONFIG_FILE} and {WEIGHT_FILES}"
        raise FileError("--weights", problem, value=str(given), allowed="a folder of a model")
    read_hf_config(folder)
    read_config(folder)
    before = out / Trial("grpo", "torch-static", folder).name / JOB_FILE
    if before.is_file() and load_yaml(before)["models"]["actor"] != str(folder):
        problem = f"has the name of another folder, from which {before.parent} started"
        raise FileError("--weights", problem, value=str(given), allowed="another --out")
    return folder


def _small_model(sheet: DeviceSheet) -> ModelArchitecture:
    """Return a model whose weights are made in a second: 27 million on a GPU, 55 MB, and a tiny one on a CPU."""
    from rlplan.profiles.sheets import load_model

    model = load_model("tiny")
    if sheet.kind != "gpu":
        return model
    return replace(
        model,
        hidden_size=512,
        num_layers=6,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        ffn_size=1536,
        vocab_size=16384,
        tied_embeddings=True,
    )


def trial_job(trial: Trial, sheet: DeviceSheet, devices: int, cores: int) -> Job:
    """Return the job of a trial: small, with prompts that are made up and a rule."""
    from rlplan.algorithms import load_algorithm
    from rlplan.files.frozen import FrozenDict
    from rlplan.job import Engines, Job, NodeGroup, Rewards
    from rlplan.workload import Workload

    algorithm = load_algorithm(trial.algorithm)
    tokens, sequences = (128, 64) if sheet.kind == "gpu" else (16, 32)
    samples = 8 if algorithm.groups else 1
    model = MODELS[sheet.kind] if trial.weights is None else str(trial.weights)
    return Job(
        name=trial.name,
        algorithm=trial.algorithm,
        models=FrozenDict(dict.fromkeys(algorithm.required_roles, model)),
        weights="random" if trial.weights is None else None,
        workload=Workload(
            prompts=sequences // samples,
            samples_per_prompt=samples,
            prompt_tokens=tokens,
            response_tokens=tokens,
            updates=2,
        ),
        cluster=(NodeGroup(gpu=sheet.name, gpus_per_node=devices, cpu_cores=cores),),
        engines=Engines(train="torch-tp-dp", generate=trial.engine),
        rewards=Rewards(function="digits"),
    )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what is under way after so many seconds.

    Raises:
        TimeUpError: It was interrupted. What it had written is there to go on with.
    """
    over = False

    def interrupt(number: int, _: object) -> NoReturn:
        nonlocal over
        over = True
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except KeyboardInterrupt:
        if over:  # an interrupted library may raise one of its own
            raise TimeUpError from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def try_job(trial: Trial, job: Job, out: Path, *, iterations: int, warmup: int) -> TrialResult:
    """Return what came of a trial; each of its pieces that is done already is read instead.

    Args:
        out: Folder of all trials; their profile is one.
    """
    from rlplan.files.writing import write_yaml
    from rlplan.planner.answers.completion import load_plan
    from rlplan.planner.search import search
    from rlplan.profiles.catalog import load_job
    from rlplan.profiles.facts import load_facts
    from rlplan.results.stored import COMPARISON_FILE, PLAN_FILE, read_run, write_plan
    from rlplan.simulator.simulate import simulate

    folder, profile = out / trial.name, out / "profile"
    job_file, plan_file, run_folder = folder / JOB_FILE, folder / PLAN_FILE, folder / "run"
    if not plan_file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_yaml(job_file, job)
        job = load_job(job_file)
        group = job.cluster[0]
        say(f"{trial.name}: profile")
        measure_machine(
            profile, job=job, folder=folder, device=group.gpu, devices=group.gpus, quick=True
        )
        say(f"{trial.name}: search")
        with progress_bar("search") as progress:
            found = search(job, load_facts(job, profile), progress=progress)
        write_plan(plan_file, found.plans[0].plan)
    plan, facts = load_plan(plan_file, profile)
    forecast = simulate(plan, facts)
    if (run_folder / COMPARISON_FILE).is_file():
        run = read_run(run_folder)
        return TrialResult(trial, forecast, run, compare_run(run_folder, forecast, run, facts))
    say(f"{trial.name}: {iterations} iterations on Ray")
    shutil.rmtree(run_folder, ignore_errors=True)  # what an interrupted run left
    run = run_plan(
        plan, run_folder, iterations=iterations, warmup=warmup, seed=job.seed, folder=folder
    )
    return TrialResult(trial, forecast, run, compare_run(run_folder, forecast, run, facts))
