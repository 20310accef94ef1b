"""Plans by the keys of SkyRL, AReaL and prime-rl: imported again they are the same, and what cannot be said is refused."""

import tomllib
from dataclasses import replace
from functools import cache

import pytest
import yaml

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import imported, settings_of
from rlplan.planner.configs.proposing.searching import best_plans_for
from rlplan.planner.configs.proposing.ways import ways_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.requests.pinned import NOTHING_PINNED
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import load_facts
from tests.cases import first
from tests.planner.configs import test_keys_of_areal, test_keys_of_prime_rl, test_keys_of_skyrl
from tests.planner.configs.test_exporting import FILES, small_job

KEYS = {
    "skyrl": test_keys_of_skyrl,
    "areal": test_keys_of_areal,
    "prime-rl": test_keys_of_prime_rl,
}
RUNS = [(target, name) for target, module in KEYS.items() for name in module.BASES]
ENDLESS = {"skyrl": "without an end", "areal": "SGLang", "prime-rl": "a node"}


@cache
def plan_of(target, name):
    """Return the plan that one of a framework's configurations amounts to."""
    module = KEYS[target]
    found = imported(target, module.BASES[name], module.OPTIONS)
    return complete(found.draft, found.resolved, load_facts(found.resolved), "plan")


def again(target, written, folder):
    """Return what an export is imported as."""
    path = folder / f"run.{FILES.get(target, 'sh')}"
    path.write_text(written.text, encoding="utf-8")
    return imported(target, [str(path)], KEYS[target].OPTIONS)


@pytest.mark.parametrize(("target", "name"), first(20, RUNS))
def test_a_configuration_is_written_as_itself_and_breaks_no_rule(target, name, tmp_path):
    module = KEYS[target]
    before = imported(target, module.BASES[name], module.OPTIONS)
    written = exported(plan_of(target, name), target)
    found = again(target, written, tmp_path)
    assert found.keys.unknown == ()
    assert found.draft.tasks == before.draft.tasks
    assert (found.draft.mode, found.draft.staleness) == (before.draft.mode, before.draft.staleness)
    assert (found.job.algorithm, found.job.trainers) == (before.job.algorithm, before.job.trainers)
    assert found.job.hyperparameters == before.job.hyperparameters
    settings = settings_of(target, [str(found.settings.file)], module.OPTIONS)
    assert not [broken for rule in rules_of(target) for broken in rule.broken(settings)]


def test_a_run_without_an_end_of_skyrls_learns_by_sampled_log_probabilities():
    written = exported(plan_of("skyrl", "without an end"), "skyrl")
    assert written.start.endswith("examples.train.fully_async.main_fully_async")
    fully = "trainer.fully_async"
    assert written.values["trainer.algorithm.policy_loss_type"] == "rollout_is"
    assert written.values[f"{fully}.enabled"] is True
    workers = written.values[f"{fully}.num_parallel_generation_workers"]
    assert workers == 64 * (1 + written.values[f"{fully}.max_staleness_steps"])
    assert any("rollout_is" in note for note in written.notes)


@pytest.mark.parametrize(
    ("target", "field", "changed"),
    [
        ("skyrl", "in_flight", {"in_flight": "drain"}),
        ("areal", "in_flight", {"in_flight": "keep"}),
        ("prime-rl", "in_flight", {"in_flight": "recompute"}),
        ("skyrl", "staleness", {"staleness": 1.5}),
        ("areal", "sync_every", {"sync_every": 2}),
        ("prime-rl", "mode", {"mode": "one-step-off"}),
        ("areal", "mode", {"mode": "streaming"}),
    ],
)
def test_flows_that_a_framework_lacks_are_refused_by_name(target, field, changed):
    plan = replace(plan_of(target, ENDLESS[target]), **changed)
    title = load_config_sheet(target).title
    with pytest.raises(FileError, match=rf"{field}: .*{title} .* cannot do that"):
        exported(plan, target)


def test_a_critic_of_skyrls_on_the_references_gpus_is_refused():
    plan = plan_of("skyrl", "a critic apart")
    critic = plan.tasks["critic.update"].pool
    pools = tuple(
        replace(each, roles=("critic", "reference")) if each.name == critic else each
        for each in plan.pools
    )
    models = FrozenDict({**plan.job.models, "reference": plan.job.models["actor"]})
    losses = replace(plan.job.hyperparameters, kl_in="loss", kl_coefficient=0.01)
    job = replace(plan.job, models=models, hyperparameters=losses)
    passes = plan.tasks["critic.compute_values"]
    tasks = plan.tasks.with_item("reference.compute_log_prob", passes)
    with pytest.raises(FileError, match=r"holds (critic and reference|reference and critic) tog"):
        exported(replace(plan, job=job, pools=pools, tasks=tasks), "skyrl")


def test_a_reference_of_skyrls_fsdp_is_in_bf16():
    plan = plan_of("skyrl", "together")
    with pytest.raises(FileError, match=r"job.trainers.reference.weights: .*allowed: bf16"):
        exported(replace(plan, job=replace(plan.job, trainers=None)), "skyrl")


def test_areals_sizes_are_allocations_with_those_of_experts_beside():
    written = exported(plan_of("areal", "experts"), "areal")
    assert written.values["actor.backend"] == "megatron:(attn:d4p1t2c1|ffn:d1p1t1e8)"
    tree = yaml.safe_load(written.text)
    assert tree["rollout"]["backend"] == "sglang:d4p1t1"
    assert tree["actor"]["scheduling_spec"][0]["gpu"] == 1
    assert tree["stats_logger"]["fileroot"] == "${cluster.fileroot}"


def test_areals_penalty_in_the_loss_is_refused():
    plan = plan_of("areal", "a reference")
    losses = replace(plan.job.hyperparameters, kl_in="loss")
    with pytest.raises(FileError, match=r"job.hyperparameters.kl_in: .*allowed: reward, none"):
        exported(replace(plan, job=replace(plan.job, hyperparameters=losses)), "areal")


def test_weights_that_areal_hands_on_by_a_disk_are_noted():
    more = "rollout.scheduling_strategy.type=colocation enable_offload=true actor.weight_update_mode=disk"
    words = [*test_keys_of_areal.BASES["SGLang"], *more.split()]
    found = imported("areal", words, test_keys_of_areal.OPTIONS)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    written = exported(plan, "areal")
    assert written.values["actor.weight_update_mode"] == "disk"
    assert any("over a disk" in note for note in written.notes)


def test_prime_rls_file_has_a_table_for_each_section():
    data = tomllib.loads(exported(plan_of("prime-rl", "several nodes"), "prime-rl").text)
    assert data["deployment"] == {
        "gpus_per_node": 8,
        "type": "multi_node",
        "num_train_nodes": 2,
        "num_infer_nodes": 1,
        "num_infer_replicas": 2,
    }
    assert (data["orchestrator"]["batch_size"], data["orchestrator"]["group_size"]) == (512, 16)
    assert data["trainer"]["model"]["seq_len"] == 8192
    assert data["orchestrator"]["train"]["source"][0]["env"]["taskset"]["id"]
    assert data["slurm"]["job_name"]


def test_prime_rl_counts_no_micro_batches_and_no_updates_within_a_step():
    plan = plan_of("prime-rl", "a node")
    counted = replace(plan.tasks["actor.update"], token_budget=None)
    with pytest.raises(FileError, match=r"tasks.actor.update.token_budget: counts sequences"):
        exported(replace(plan, tasks=plan.tasks.with_item("actor.update", counted)), "prime-rl")
    work = replace(plan.job.workload, updates=2)
    with pytest.raises(FileError, match=r"job.workload.updates: learns from a step in several"):
        exported(replace(plan, job=replace(plan.job, workload=work)), "prime-rl")


def test_a_reference_is_refused_by_name_before_prime_rl_is_searched():
    with pytest.raises(FileError, match=r"job.hyperparameters.kl_in: compares the actor"):
        best_plans_for("prime-rl", small_job(), load_facts, pinned=NOTHING_PINNED)


def ways(target, job, asked=NOTHING_PINNED.asked):
    """Return the ways of a framework that a search looks at."""
    pinned = replace(NOTHING_PINNED, asked=asked)
    return tuple(ways_of(load_config_sheet(target), job, pinned))


def test_jobs_are_searched_as_a_framework_runs_them():
    for way in ways("skyrl", small_job()):
        options = way.job.trainer("reference")
        megatron = way.job.framework == "skyrl-megatron"
        assert options.weights == (None if megatron else "bf16")
        assert (options.logits is None) != megatron
        assert way.job.old_log_prob == "trainer"
    asked = AskedSchedules(modes=("async",), staleness=2.0)
    job = small_job()
    job = replace(job, workload=replace(job.workload, updates=1))
    endless = ways("skyrl", job, asked)
    assert {way.job.old_log_prob for way in endless} == {"engine"}
    assert {way.job.hyperparameters.kl_in for way in ways("areal", small_job())} == {"reward"}


def test_of_several_trainers_with_one_name_that_of_the_jobs_engine_is_searched():
    engines = {way.job.engines.train for way in ways("areal", small_job())}
    assert engines == {"fsdp2-hf", "megatron-core-2025", "fsdp2"}
    own = replace(ways("areal", small_job())[0].job, engines=Engines(train="fsdp2"))
    assert {way.job.engines.train for way in ways("areal", own)} == {"fsdp2"}


def test_a_reference_beside_the_policy_needs_one():
    def names(job):
        found = (way.pinned.arranged for way in ways("skyrl", job))
        return {each.arrangement.name for each in found}

    losses = replace(small_job().hyperparameters, kl_in="none")
    models = FrozenDict({"actor": small_job().models["actor"]})
    alone = replace(small_job(), models=models, hyperparameters=losses)
    assert any("beside" in name for name in names(small_job()))
    assert not any("beside" in name for name in names(alone))


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("target", KEYS)
def test_what_is_found_for_a_framework_can_be_told_to_it(target, mode):
    job = small_job()
    models = FrozenDict({"actor": job.models["actor"]})
    losses = replace(job.hyperparameters, kl_in="none")
    work = replace(job.workload, updates=1)
    job = replace(job, models=models, hyperparameters=losses, workload=work)
    asked = AskedSchedules(modes=(mode,), staleness=2.0 if mode == "async" else None)
    found = best_plans_for(target, job, load_facts, pinned=replace(NOTHING_PINNED, asked=asked))
    assert 0 <= found.gap < 1
    for each in found.plans:
        assert each.plan.mode == mode
        exported(each.plan, target)
