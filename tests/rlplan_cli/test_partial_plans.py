"""Partial plans: what is pinned stays pinned, and what is missing is chosen and written out."""

from pathlib import Path
from typing import Any

import pytest

from rlplan.files.decoding import read_yaml
from rlplan.files.writing import plain
from rlplan.plan import Plan
from rlplan.planner.answers.completion import load_plan
from tests.rlplan_cli.conftest import DRAFT, JOB, change, dump

SIZES = ("tp", "pp", "dp")


@pytest.fixture
def completed(project, rlplan):
    """Return a function that completes a draft and returns the plan that was written out."""

    def complete(**parts):
        Path("draft.yaml").write_text(dump(DRAFT | parts))
        answer = rlplan("simulate", "draft.yaml", "--out-plan", "full.yaml")
        assert answer.code == 0, answer.err
        return plan_in("full.yaml")

    return complete


def plan_in(path):
    """Return what a plan's file says, its defaults too."""
    return plain(read_yaml(Plan, Path(path)))


def pool(name, gpus, *roles, device="cpu"):
    return {"name": name, "device": device, "gpus": gpus, "roles": list(roles)}


@pytest.mark.full
def test_a_plan_of_pools_alone_gets_layouts_that_fill_them(completed):
    plan = completed()
    for name, layout in plan["tasks"].items():
        wanted = 1 if name.startswith("rule.") else 2
        assert layout["tp"] * layout["pp"] * layout["dp"] == wanted, name
    assert plan["order"].keys() == {"p0", "host"}


def test_a_fixed_tensor_size_stays_and_the_rest_is_chosen(completed):
    plan = completed(tasks={"actor.update": {"tp": 2}})
    update = plan["tasks"]["actor.update"]
    assert [update[size] for size in SIZES] == [2, 1, 1]


@pytest.mark.parametrize("tp", [1, 2])
def test_generation_keeps_its_fixed_size_whatever_training_has(completed, tp):
    plan = completed(tasks={"actor.generate": {"tp": tp}, "actor.update": {"tp": 2}})
    assert plan["tasks"]["actor.generate"]["tp"] == tp
    assert plan["transition"] == ("none" if tp == 2 else "hybridflow")


def test_fixed_settings_stay(completed):
    pinned: dict[str, dict[str, Any]] = {
        "critic.update": {"micro_batch": 1},
        "actor.update": {"offload": True, "dp": 2},
        "actor.generate": {"max_running": 5, "memory_fraction": 0.7, "dp": 1},
    }
    plan = completed(tasks=pinned)
    for name, settings in pinned.items():
        assert settings.items() <= plan["tasks"][name].items()


def test_pools_and_their_order_stay(completed):
    pools = [pool("rest", 1, "critic", "reward"), pool("first", 1, "actor", "reference")]
    plan = completed(pools=pools)
    assert plan["pools"][:2] == pools
    assert plan["tasks"]["critic.update"]["pool"] == "rest"
    assert plan["tasks"]["actor.generate"]["pool"] == "first"


def test_a_rule_gets_a_pool_of_host_processes(completed):
    plan = completed()
    assert plan["pools"][-1] == pool("host", 1, "rule", device="host")
    assert plan["tasks"]["rule.compute_reward"]["pool"] == "host"


def test_a_host_pool_of_the_user_stays(completed):
    plan = completed(pools=[*DRAFT["pools"], pool("graders", 3, "rule", device="host")])
    assert (
        plan["tasks"]["rule.compute_reward"] | {"pool": "graders", "dp": 3}
        == (plan["tasks"]["rule.compute_reward"])
    )


def test_a_fixed_order_stays(completed):
    order = [
        "actor.generate", "reward.compute_reward", "reference.compute_log_prob",
        "critic.compute_values", "critic.update", "actor.update",
    ]  # fmt: skip
    assert completed(order={"p0": order})["order"]["p0"] == order


def test_a_complete_plan_is_completed_to_itself(completed, rlplan):
    first = completed()
    assert rlplan("simulate", "full.yaml", "--out-plan", "again.yaml").code == 0
    assert plan_in("again.yaml") == first


@pytest.mark.full
@pytest.mark.parametrize("task", ["actor.update", "actor.generate", "critic.update"])
def test_a_size_taken_out_of_a_complete_plan_with_a_rule_is_chosen_again(completed, rlplan, task):
    first = completed()
    change("full.yaml", "tasks", task, "dp", to=None)
    answer = rlplan("simulate", "full.yaml", "--out-plan", "again.yaml")
    assert answer.code == 0, answer.err
    again = plan_in("again.yaml")
    assert again["tasks"]["rule.compute_reward"] == first["tasks"]["rule.compute_reward"]
    assert again["tasks"][task]["dp"] == first["tasks"][task]["dp"]


def test_a_plan_written_in_full_but_for_its_host_pool_is_taken_as_it_is(completed, rlplan):
    plan = completed()
    del plan["tasks"]["rule.compute_reward"], plan["order"]["host"]
    plan["pools"].pop()
    plan["tasks"]["actor.update"]["micro_batch"] = 2
    Path("most.yaml").write_text(dump(plan))
    assert rlplan("simulate", "most.yaml", "--out-plan", "full.yaml").code == 0
    again = plan_in("full.yaml")
    assert again["tasks"]["actor.update"] == plan["tasks"]["actor.update"]
    assert again["pools"][-1]["name"] == "host"


@pytest.fixture
def searched(project, rlplan):
    """Return a function that searches what a partial plan leaves open, on four CPUs in two nodes."""

    def search(*options, **parts):
        Path("wide.yaml").write_text(dump(JOB | {"cluster": [WIDE]}))
        Path("draft.yaml").write_text(dump({"job": "wide.yaml"} | parts))
        answer = rlplan("search", "draft.yaml", "--json", *options)
        assert answer.code == 0, answer.err
        return [each["plan"] for each in answer.json["plans"]]

    return search


WIDE = {"gpu": "cpu", "gpus_per_node": 2, "nodes": 2}


def roles_of(plan):
    return {tuple(each["roles"]) for each in plan["pools"] if each["device"] != "host"}


@pytest.mark.full
def test_a_fixed_tensor_size_stays_in_every_placement_of_a_search(searched):
    plans = searched(tasks={"actor.update": {"tp": 2}})
    assert {plan["tasks"]["actor.update"]["tp"] for plan in plans} == {2}
    assert len(plans) > 10


@pytest.mark.full
def test_fixed_gpus_of_a_pool_stay_and_the_other_roles_are_placed(searched):
    plans = searched(pools=[{"name": "judge", "gpus": 1, "roles": ["reward"]}])
    for plan in plans:
        judge = next(each for each in plan["pools"] if each["name"] == "judge")
        assert judge == pool("judge", 1, "reward")
        assert plan["tasks"]["reward.compute_reward"]["pool"] == "judge"
    assert len({frozenset(roles_of(plan)) for plan in plans}) > 3


def test_a_size_that_no_search_would_take_stays_too(searched):
    pinned = [{"gpus": 3, "roles": ["actor", "critic", "reference", "reward"]}]
    one = {"prompts": 12, "prompt_tokens": 8, "response_tokens": 8, "updates": 2}
    plans = searched(job=JOB | {"cluster": [WIDE], "workload": one}, pools=pinned)
    assert [plan["pools"][0]["gpus"] for plan in plans] == [3]


def test_a_placement_stays_while_sizes_are_searched(searched):
    pinned = [{"roles": ["actor", "reference"]}, {"roles": ["critic", "reward"]}]
    plans = searched(pools=pinned)
    assert [roles_of(plan) for plan in plans] == [{("actor", "reference"), ("critic", "reward")}]


@pytest.mark.full
def test_generation_stays_on_the_pool_that_it_is_fixed_to(searched):
    pinned = [{"name": "rollout", "roles": ["actor"]}, {"name": "home", "roles": ["actor"]}]
    plans = searched(pools=pinned, tasks={"actor.generate": {"pool": "rollout"}})
    for plan in plans:
        assert plan["tasks"]["actor.generate"]["pool"] == "rollout"
        assert plan["tasks"]["actor.update"]["pool"] == "home"
        assert plan["transition"] == "two-copies"


@pytest.mark.full
def test_a_fixed_mode_stays(searched):
    assert {plan["mode"] for plan in searched("--max-gpus", "2", mode="one-step-off")} == {
        "one-step-off"
    }


def test_a_fixed_order_stays_in_a_search(searched):
    order = ["reward.compute_reward", "critic.compute_values", "critic.update"]
    plans = searched(pools=[{"name": "b", "roles": ["critic", "reward"]}], order={"b": order})
    assert {tuple(plan["order"]["b"]) for plan in plans} == {tuple(order)}


def test_a_pool_of_open_size_is_chosen_when_a_plan_is_completed(completed):
    plan = completed(pools=[{"roles": ["actor", "critic", "reference", "reward"]}])
    assert plan["pools"][0]["gpus"] in {1, 2}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"tasks": {"actor.update": {"tp": 3}}}, "tasks.actor.update.tp"),
        ({"tasks": {"actor.update": {"tp": 2, "dp": 4}}}, "covers more than the cluster's 4 GPUs"),
        ({"pools": [{"gpus": 9, "roles": ["actor"]}]}, "at most 4 over all pools"),
        ({"pools": [{"gpus": 4, "roles": ["actor"]}]}, "leave no GPU of the cluster's 4 to critic"),
        ({"pools": [{"roles": ["critic"]}, {"roles": ["critic"]}]}, "critic is on 2 pools"),
        ({"pools": [{"roles": ["cost"]}]}, "no such model; found 'cost'"),
        ({"pools": [{"device": "cpux", "roles": ["actor"]}]}, "did you mean 'cpu'"),
        ({"order": {"p7": []}}, "order.p7: no such pool"),
        ({"pools": [{"roles": ["actor"]}], "mode": "streaming"}, "or a pool of its own for"),
        ({"pools": [{"roles": ["actor"]}], "mode": "one-step-off"}, "or a pool of its own for"),
        ({"pools": [{"roles": ["actor"]}], "transition": "two-copies"}, "two copies are for"),
    ],
)
def test_fixed_parts_that_nothing_can_keep_are_named_in_one_line(project, rlplan, parts, said):
    Path("wide.yaml").write_text(dump(JOB | {"cluster": [WIDE]}))
    Path("draft.yaml").write_text(dump({"job": "wide.yaml"} | parts))
    answer = rlplan("search", "draft.yaml")
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert "draft.yaml" in answer.err
    assert said in answer.err


@pytest.mark.full
def test_an_older_plans_pass_of_a_reference_that_is_not_used_is_left_out(completed, rlplan):
    plan = completed()
    change("full.yaml", "job", "hyperparameters", to={"kl_coefficient": 0.0})
    answer = rlplan("simulate", "full.yaml", "--out-plan", "again.yaml")
    assert answer.code == 0, answer.err
    assert "models.reference is not used" in answer.err
    again = plan_in("again.yaml")
    assert plan["tasks"].keys() - again["tasks"].keys() == {"reference.compute_log_prob"}
    assert "reference" not in again["pools"][0]["roles"]


@pytest.mark.parametrize("lays_out", [False, True])
def test_a_plan_that_lays_out_the_pass_for_old_log_probabilities_has_it(tmp_path, lays_out):
    """Slime leaves it out of steps of one update, or runs it: where the job does not say, its plan does."""
    (tmp_path / "job.yaml").write_text(
        "version: 1\nname: one\nalgorithm: grpo\nframework: slime\nmodels: {actor: qwen3-8b}\n"
        "hyperparameters: {kl_coefficient: 0}\nrewards: {function: exact_match}\n"
        "workload: {prompts: 8, samples_per_prompt: 8, prompt_tokens: 128, response_tokens: 512, updates: 1}\n"
        "cluster: [{gpu: h100-80gb-sxm, gpus_per_node: 8, nodes: 1}]\n"
    )
    passed = "  actor.compute_log_prob: {tp: 2, dp: 4}\n" if lays_out else ""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "version: 1\njob: job.yaml\npools: [{name: p0, device: h100-80gb-sxm, gpus: 8, roles: [actor]}]\n"
        f"tasks:\n  actor.generate: {{tp: 2, dp: 4}}\n{passed}  actor.update: {{tp: 2, dp: 4, recompute: full}}\n"
    )
    found, _ = load_plan(plan)
    assert ("actor.compute_log_prob" in found.tasks) is lays_out
    assert found.job.old_log_prob == ("trainer" if lays_out else "engine")
