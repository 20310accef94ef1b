"""Plans by the keys of frameworks: imported again they are the same plans, and what cannot be said is refused."""

import os
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, UnfinishedError
from rlplan.files.decoding import load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models import Adapter
from rlplan.plan import TaskDraft
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.proposing import searching
from rlplan.planner.configs.proposing.searching import best_plans_for, plans_of
from rlplan.planner.configs.writing import exporting
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.frameworks.openrlhf.reading import ADAPTER_NOTE
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_framework
from rlplan.workload import PromptImages, Workload
from tests.house.tree import ROOT
from tests.planner.configs.exportable import drawn_plan
from tests.planner.configs.test_importing import OPENRLHF, VERL

SHARED = ROOT.parent / "shared"
RECIPES = SHARED / "data" / "configs" / "nemo-rl"
# An interpreter that has a framework's package, without what it depends on, and hydra-core.
VALIDATING = os.environ.get("RLPLAN_VALIDATING_PYTHON")
REFUSED = 50
# How files are called, where a framework gets no script.
FILES = {"nemo-rl": "yaml", "areal": "yaml", "prime-rl": "toml"}


def flattened(data, prefix=""):
    """Return the leaves of nested mappings by their dotted keys; an empty mapping is a leaf."""
    found = {}
    for key, value in data.items():
        nested = isinstance(value, dict) and value
        found |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def plans(target, count):
    """Yield plans that a target's arrangements have, the same every time, with their exports."""
    for seed in range(count * REFUSED):
        plan = drawn_plan(random.Random(seed), target)
        if plan is None:
            continue
        try:
            yield plan, exported(plan, target)
        except FileError:
            continue
        count -= 1
        if not count:
            return


def test_every_framework_that_is_exported_to_is_read_so_that_what_is_written_can_be_compared():
    written = frameworks_with("keys", "writing")
    assert set(written) >= {"verl", "nemo-rl", "openrlhf"}
    assert frameworks_with("keys", "writing", "reading") == written


@pytest.mark.full
@pytest.mark.parametrize("target", frameworks_with("keys", "writing"))
@given(seed=st.integers(0, 10**6))
def test_an_exported_plan_is_imported_as_itself(target, seed, tmp_path_factory):
    plan = drawn_plan(random.Random(seed), target)
    if plan is None:
        return
    try:
        written = exported(plan, target)
    except FileError:
        return
    path = tmp_path_factory.mktemp("export") / f"run.{FILES.get(target, 'sh')}"
    path.write_text(written.text)
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=800, mean_prompt=200, environment={})
    found = imported(target, [str(path)], options)
    assert found.keys.unknown == ()
    assert (found.draft.mode, found.job.algorithm) == (plan.mode, plan.job.algorithm)
    for name in ("actor.generate", "actor.update"):
        own, other = plan.tasks[name], found.draft.tasks[name]
        assert [(own.tp, own.pp, own.dp, own.cp, own.ep)] == [
            (other.tp, other.pp, other.dp, other.cp, other.ep)
        ]
    assert found.resolved.workload.sequences == plan.job.workload.sequences


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("verl", "update_weights_bucket_megabytes=3072"),
        ("skyrl", "weight_transfer_threshold_cuda_ipc_GB=3.0"),
        ("slime", "--update-weight-buffer-size 3221225472"),
        ("miles", "--update-weight-buffer-size 3221225472"),
        ("nemo-rl", "refit_buffer_size_gb: 3.0"),
    ],
)
def test_buckets_of_a_weight_sync_are_written_where_a_plan_says_a_size_of_its_own(target, key):
    """verl asks that a bucket holds the largest tensor, which the 64 MiB of plans that say nothing do not."""
    plan = next(
        plan
        for plan, _ in plans(target, 40)
        if plan.pool_of("actor.generate") == plan.pool_of("actor.update")
    )
    assert re.split("[ =:]", key)[0] not in exported(plan, target).text
    found = exported(replace(plan, bucket_bytes=3 * 2**30), target)
    assert key in found.text
    assert not any("bucket_bytes" in each for each in found.notes)


def test_buckets_that_no_key_says_are_named_as_not_written():
    plan, _ = next(plans("openrlhf", 1))
    (note,) = exported(replace(plan, bucket_bytes=3 * 2**30), "openrlhf").notes
    assert note == "not written, and for you to set: bucket_bytes"


def test_slime_is_told_a_token_budget_or_a_micro_batch():
    for plan, written in plans("slime", 12):
        packed = plan.tasks["actor.update"].token_budget is not None
        assert ("--max-tokens-per-gpu" in written.text) == packed
        assert ("--micro-batch-size" in written.text) != packed


def test_split_placements_are_refused_by_role_for_verl():
    plan = next(plan for plan, _ in plans("openrlhf", 40) if _holds_reference_alone(plan))
    refused = r"holds the reference.*verl 0.9.1 cannot do that.*search JOB --for verl finds what it can run$"
    with pytest.raises(FileError, match=refused):
        exported(_of_verl(plan), "verl")


def _holds_reference_alone(plan):
    return ("reference",) in [pool.roles for pool in plan.pools]


def _of_verl(plan):
    tasks = plan.tasks
    for name, layout in tasks.items():
        if layout.engine.startswith("deepspeed"):
            tasks = tasks.with_item(name, replace(layout, engine="fsdp2-hf"))
    return replace(plan, tasks=tasks)


def test_what_a_framework_would_run_otherwise_is_refused():
    plan, _ = next(plans("verl", 1))
    layout = plan.tasks["actor.generate"]
    changed = replace(plan, tasks=plan.tasks.with_item("actor.generate", replace(layout, pp=2)))
    with pytest.raises(FileError, match="verl"):
        exported(changed, "verl")
    with pytest.raises(FileError, match="--version"):
        exported(plan, "verl", version="0.1")


def _cut(layout):
    return layout.tp, layout.pp, layout.cp, layout.ep


def test_layouts_of_their_own_in_a_process_of_megatron_are_refused():
    plan = next(
        plan
        for plan, _ in plans("verl", 60)
        if plan.tasks["actor.update"].engine.startswith("megatron")
        and "critic.update" in plan.tasks
        and plan.tasks["critic.update"].dp % 2 == 0
    )
    layout = plan.tasks["critic.update"]
    own = replace(layout, tp=layout.tp * 2, dp=layout.dp // 2)
    changed = replace(plan, tasks=plan.tasks.with_item("critic.update", own))
    message = rf"tasks.critic.update.tp: is not the actor's tp {layout.tp}, and Megatron has one layout a process"
    with pytest.raises(FileError, match=message):
        exported(changed, "verl")


@pytest.mark.full
def test_a_search_for_verl_gives_all_roles_of_a_process_of_megatron_one_layout():
    job = small_job()
    models = FrozenDict({**job.models, "critic": job.models["actor"]})
    job = replace(job, algorithm="ppo", models=models, framework="verl-megatron")
    job = resolve_job(
        replace(job, cluster=(replace(job.cluster[0], gpus_per_node=2),)), Path(), file="job"
    )
    found = best_plans_for("verl", job, load_facts, pinned=NOTHING_PINNED)
    assert found.gap < 1
    for each in found.plans:
        written = exported(each.plan, "verl")
        assert "model_engine=megatron" in written.text
        tasks = each.plan.tasks.items()
        cuts = {_cut(task) for name, task in tasks if task.engine.startswith("megatron")}
        assert len(cuts) == 1, each.plan.placement


@pytest.mark.parametrize("engine", ["megatron", "fsdp2"])
def test_a_reference_whose_weights_leave_has_no_states_that_stay(engine):
    name = "reference.compute_log_prob"
    plan = next(
        plan
        for plan, _ in plans("verl", 60)
        if name in plan.tasks and plan.tasks[name].engine.startswith(engine)
    )
    leaves = replace(plan.tasks[name], offload=True)
    changed = replace(plan, tasks=plan.tasks.with_item(name, leaves))
    assert re.search(r"ref\.\S*param_offload=true", exported(changed, "verl").text, re.IGNORECASE)


def test_states_leave_as_the_jobs_framework_has_it():
    plan = next(
        plan
        for plan, _ in plans("verl", 60)
        if plan.tasks["actor.update"].engine.startswith("fsdp2")
    )
    tasks = plan.tasks
    for name in ("actor.compute_log_prob", "actor.update"):
        if name in tasks:
            tasks = tasks.with_item(name, replace(tasks[name], offload=True))
    text = exported(
        replace(plan, tasks=tasks, job=replace(plan.job, framework="rlplan")), "verl"
    ).text
    assert load_framework("rlplan").offloads == ("optimizer",)
    actor = "actor_rollout_ref.actor.fsdp_config"
    assert f"{actor}.param_offload=False" in text
    assert f"{actor}.optimizer_offload=True" in text


def test_an_optimizer_that_steps_on_the_host_is_told_again():
    words = [*OPENRLHF, "--ds.adam_offload"]
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
    found = imported("openrlhf", words, options)
    assert found.resolved.trainer("actor").host_optimizer == 1
    assert found.resolved.trainer("reference").host_optimizer == 0
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    assert "--ds.adam_offload" in exported(plan, "openrlhf").text


def test_adapters_of_openrlhf_are_exported_for_a_copy_that_merges_them():
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
    found = imported("openrlhf", [*OPENRLHF, "--ds.lora.rank", "8"], options)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    assert ADAPTER_NOTE in exported(plan, "openrlhf").notes


def test_variables_stand_for_what_no_plan_says():
    _, written = next(plans("verl", 1))
    assert written.variables["TRAIN_FILES"] is None
    assert '"${TRAIN_FILES}"' in written.text
    assert "/" in (written.variables["ACTOR_MODEL"] or "")


def test_micro_batches_by_tokens_have_no_samples_that_openrlhf_checks():
    """A budget may hold more samples than there are; so many in a micro-batch would leave copies of the actor none."""
    plan = next(
        plan for plan, _ in plans("openrlhf", 50) if plan.tasks["actor.update"].token_budget
    )
    passed = {
        name: replace(each, micro_batch=10**6) if each.token_budget else each
        for name, each in plan.tasks.items()
    }
    said = exported(replace(plan, tasks=FrozenDict(passed)), "openrlhf").values
    assert (said["rollout.micro_batch_size"], said["train.micro_batch_size"]) == (1, 1)


def small_job():
    """Return a job whose searches take little time."""
    job = Job(
        name="small",
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), "qwen2.5-1.5b")),
        workload=Workload(
            prompts=64, samples_per_prompt=4, prompt_tokens=256, response_tokens=1024, updates=2
        ),
        cluster=(NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=4),),
        rewards=Rewards(function="exact_match"),
    )
    return resolve_job(job, Path(), file="job")


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    [
        "nemo-rl",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("easyr1", "miles", "openrlhf", "slime", "verl")
        ),
    ],
)
def test_a_search_for_a_framework_finds_what_it_runs(target):
    job = small_job()
    found = best_plans_for(target, job, load_facts, pinned=NOTHING_PINNED)
    assert 0 <= found.gap < 1
    for each in found.plans:
        exported(each.plan, target)
        assert each.forecast.feasible
    best = min(each.forecast.iteration_seconds for each in found.plans)
    assert found.bound_seconds <= best * (1 + 1e-9)


@pytest.mark.full
def test_a_way_without_plans_that_keep_its_rules_still_bounds_the_best(monkeypatch):
    found = best_plans_for("nemo-rl", small_job(), load_facts, pinned=NOTHING_PINNED)
    best = found.plans[0].forecast.iteration_seconds
    plain = searching._shares

    def shares(way, plan):
        return plain(way, plan) and way.job.framework != found.plans[0].plan.job.framework

    monkeypatch.setattr(searching, "_shares", shares)
    monkeypatch.setattr(searching, "_repaired", lambda *_: iter(()))
    rest = best_plans_for("nemo-rl", small_job(), load_facts, pinned=NOTHING_PINNED)
    assert rest.plans[0].forecast.iteration_seconds > best
    assert rest.bound_seconds <= best * (1 + 1e-9)


@pytest.mark.full
def test_updates_within_asynchronous_iterations_of_verl_get_token_budgets():
    job = small_job()
    job = replace(job, cluster=(NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=2, nodes=2),))
    asked = AskedSchedules(modes=("async",), staleness=2.0, sync_every=2, in_flight="drain")
    found = best_plans_for("verl", job, load_facts, pinned=replace(NOTHING_PINNED, asked=asked))
    best = found.plans[0].plan
    assert (
        best.tasks["actor.update"].token_budget == 8_192
    )  # as fast as one of 16,384, and the first
    assert "fully_async" in exported(best, "verl").start


def test_nothing_is_proven_where_an_arrangement_was_out_of_time_without_a_plan(monkeypatch):
    whole, ended = searching._searched, []

    def search_but_the_first(asked):
        if not ended:
            ended.append(asked)
            raise UnfinishedError("no plan was found in time")
        return whole(asked)

    monkeypatch.setattr(searching, "_searched", search_but_the_first)
    found = best_plans_for("verl", small_job(), load_facts, pinned=NOTHING_PINNED, seconds=2)
    assert (found.gap, found.bound_seconds) == (1.0, 0.0)
    assert "no time to find a plan of its other arrangements" in found.space


def test_a_plan_as_it_stands_is_not_proven_where_no_other_was_found_in_time(monkeypatch):
    plan, _ = next(plans("verl", 1))

    def end(*_, **__):
        raise UnfinishedError("no plan was found in time")

    monkeypatch.setattr(searching, "best_plans_for", end)
    found = plans_of(plan.job, load_facts, target="verl", as_it_stands=plan)
    assert (found.plans[0].plan, found.gap, found.bound_seconds) == (plan, 1.0, 0.0)
    with pytest.raises(UnfinishedError, match="--beyond looks further"):
        plans_of(plan.job, load_facts)


def test_what_is_pinned_and_the_framework_lacks_is_refused():
    pinned = Pinned(tasks=FrozenDict({"actor.update": TaskDraft(pp=2)}))
    with pytest.raises(FileError, match=r"tasks.actor.update.pp.*allowed: 1"):
        best_plans_for("openrlhf", small_job(), load_facts, pinned=pinned)


@pytest.mark.full
@pytest.mark.skipif(VALIDATING is None, reason="RLPLAN_VALIDATING_PYTHON is not set")
@pytest.mark.parametrize("target", ["verl", "openrlhf"])
def test_the_frameworks_own_validator_accepts_exported_plans(target, tmp_path):
    for number, (_, written) in enumerate(plans(target, 100)):
        script = tmp_path / f"run{number}.sh"
        script.write_text(written.text)
        answer = _validated(target, script, tmp_path)
        assert answer.returncode == 0, (script, answer.stdout[-500:], answer.stderr[-500:])


def _validated(target: str, script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with its trainer replaced by the framework's validator.

    verl's fully asynchronous trainer wants batches of 0 prompts (fully_async_rollouter.py) and starts without the
    validator, which wants them to hold a mini-batch: that is told that they hold one.
    """
    starter = folder / "bin" / "python3"
    starter.parent.mkdir(exist_ok=True)
    validator = SHARED / "tools" / f"{target}_validate.py"
    package = subprocess.run(
        [
            VALIDATING,
            "-c",
            f"import importlib.util as u; print(u.find_spec('{target}').submodule_search_locations[0])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    starter.write_text(f"""#!/usr/bin/env bash
more=()
for way in fully_async one_step_off; do
  [[ $2 == *$way* ]] && more=(--config-dir {package}/experimental/${{way}}_policy/config --config-name ${{way}}_ppo_trainer)
done
if [[ $2 == *fully_async* ]]; then
  for word in "$@"; do
    [[ $word == data.train_batch_size=0 ]] && zero=1
    [[ $word == *.actor.ppo_mini_batch_size=* ]] && mini=${{word#*=}}
  done
  [[ $zero ]] || exit 4
  set -- "$@" "data.train_batch_size=$mini"
fi
shift 2
exec {VALIDATING} {validator} "${{more[@]}}" "$@"
""")
    starter.chmod(0o755)
    names = ("TRAIN_FILES", "VAL_FILES", "REWARD_ADDRESS", "ACTOR_MODEL", "TOOL_CONFIG", "AGENT")
    environment = dict.fromkeys(names, "given") | {"PATH": f"{starter.parent}:{os.environ['PATH']}"}
    bash = shutil.which("bash") or "bash"
    return subprocess.run(
        [bash, str(script)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.full
@pytest.mark.skipif(not RECIPES.is_dir(), reason="NeMo-RL's recipes are not at hand")
def test_nemo_rl_knows_every_exported_key_and_its_type():
    # Of GRPOConfig, and in no recipe.
    known = {"grpo.skip_reference_policy_logprobs_calculation": True}
    for path in sorted(RECIPES.rglob("*.yaml")):
        named = flattened(load_yaml(path))
        known |= {key: value for key, value in named.items() if known.get(key) is None}
    for _, written in plans("nemo-rl", 100):
        for key, value in flattened(yaml.safe_load(written.text)).items():
            assert key in known, key
            usual = known[key]
            number = isinstance(usual, int | float) and not isinstance(usual, bool)
            kind = int | float if number else type(usual)
            refers = isinstance(usual, str) and "${" in usual
            assert refers or usual is None or value is None or isinstance(value, kind), (key, value)


def test_images_of_prompts_are_named_where_keys_do_not_say_them():
    options = ImportOptions(
        gpu="h100-80gb-sxm", mean_response=300, mean_prompt=900, environment={"HOME": "~"}
    )
    words = [*VERL, "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct"]
    found = imported("verl", words, options)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    work = replace(plan.job.workload, images=PromptImages(tokens=600))
    seeing = replace(plan, job=replace(plan.job, workload=work))
    told = [
        any("job.workload.images" in note for note in exported(each, "verl").notes)
        for each in (plan, seeing)
    ]
    assert told == [False, True]


def test_a_model_that_a_framework_has_no_place_for_is_named():
    job = replace(
        _small("grpo"), models=FrozenDict({"actor": "qwen2.5-1.5b", "teacher": "qwen2.5-7b"})
    )
    with pytest.raises(
        FileError, match=r"job\.models\.teacher: is of a role that slime has no place for"
    ):
        plans_of(resolve_job(job, Path()), load_facts, target="slime", seconds=1)


def test_what_of_a_job_is_refused_is_told_from_what_another_plan_would_mend():
    of_job = FileError("plan", "cannot be told", field="job.workload.over_provisioning")
    of_plan = FileError("plan", "would stop", field="rollout.micro_batch_size")
    assert searching._is_of_job(of_job)
    assert not searching._is_of_job(of_plan)


def test_an_adapter_of_the_critic_is_refused_in_words():
    own = resolve_job(_small("ppo"), Path())
    job = resolve_job(replace(own, adapters=FrozenDict({"critic": Adapter(rank=8)})), Path())
    refused = ("job.adapters.critic", "an adapter of rank 8", "all weights")
    assert refused in list(exporting._of_jobs(job, own))


def _small(algorithm):
    roles = ("actor", "critic", "reference") if algorithm == "ppo" else ("actor",)
    own = Hyperparameters()
    unlike = own if algorithm == "ppo" else replace(own, kl_coefficient=0.0, kl_in="none")
    return Job(
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, "qwen2.5-0.5b")),
        workload=Workload(
            prompts=16,
            samples_per_prompt=1 if algorithm == "ppo" else 4,
            prompt_tokens=128,
            response_tokens=128,
        ),
        cluster=(NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=2, nodes=1),),
        rewards=Rewards(function="exact_match"),
        hyperparameters=unlike,
    )
