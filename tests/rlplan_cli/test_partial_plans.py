"""Partial plans: what is fixed stays fixed, and what is missing is chosen and written out."""

from pathlib import Path

import pytest
import yaml

from tests.rlplan_cli.conftest import DRAFT, dump

SIZES = ("tp", "pp", "dp")


@pytest.fixture
def completed(project, rlplan):
    """Return a function that completes a draft and returns the plan that was written out."""

    def complete(**parts):
        Path("draft.yaml").write_text(dump(DRAFT | parts))
        answer = rlplan("simulate", "draft.yaml", "--out-plan", "full.yaml")
        assert answer.code == 0, answer.err
        return yaml.safe_load(Path("full.yaml").read_text())

    return complete


def pool(name, gpus, *roles, device="cpu"):
    return {"name": name, "device": device, "gpus": gpus, "roles": list(roles)}


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
    fixed = {
        "critic.update": {"micro_batch": 1},
        "actor.update": {"offload": True, "dp": 2},
        "actor.generate": {"max_running": 5, "memory_fraction": 0.7, "dp": 1},
    }
    plan = completed(tasks=fixed)
    for name, settings in fixed.items():
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
    assert yaml.safe_load(Path("again.yaml").read_text()) == first


def test_a_plan_written_in_full_but_for_its_host_pool_is_taken_as_it_is(completed, rlplan):
    plan = completed()
    del plan["tasks"]["rule.compute_reward"], plan["order"]["host"]
    plan["pools"].pop()
    plan["tasks"]["actor.update"]["micro_batch"] = 2
    Path("most.yaml").write_text(dump(plan))
    assert rlplan("simulate", "most.yaml", "--out-plan", "full.yaml").code == 0
    again = yaml.safe_load(Path("full.yaml").read_text())
    assert again["tasks"]["actor.update"] == plan["tasks"]["actor.update"]
    assert again["pools"][-1]["name"] == "host"
