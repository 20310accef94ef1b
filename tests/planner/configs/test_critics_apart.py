"""Critics of slime up to 0.2 and of miles before August 2026: on GPUs of their own, beside the actor's and those of engines."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_megatron_flags import APART, SHARED, read

PPO = f"train.py {APART} --advantage-estimator ppo"


def pools_of(found):
    return {pool.name: (pool.gpus, pool.roles) for pool in found.draft.pools}


@pytest.mark.parametrize(
    ("framework", "flags", "version", "gpus"),
    [
        ("slime", "", "0.2", 8),  # as many as the actor's
        ("slime", "--critic-num-gpus-per-node 4", "0.2", 4),
        ("miles", "--critic-num-nodes 2", None, 16),
    ],
)
def test_a_critic_has_gpus_of_its_own_where_engines_have(framework, flags, version, gpus):
    found = read(f"{PPO} {flags}", framework, version=version)
    assert pools_of(found) == {
        "train": (8, ("actor",)),
        "critic": (gpus, ("critic",)),
        "rollout": (8, ("actor",)),
    }
    assert found.keys.unknown == ()
    assert not list(found.doubts())
    assert found.draft.tasks["critic.update"].pool == "critic"
    assert found.draft.tasks["critic.update"].dp == gpus
    assert found.draft.tasks["actor.generate"].pool == "rollout"
    guessed = any("GPUs of its own, as releases of slime" in note for note in found.notes)
    assert guessed == (flags == "")


@pytest.mark.parametrize(("framework", "version"), [("slime", "0.3"), ("miles", None)])
def test_a_critic_shares_the_actor_s_gpus_since(framework, version):
    found = read(PPO, framework, version=version)
    assert pools_of(found)["train"] == (8, ("actor", "critic"))
    assert "critic" not in pools_of(found)


def test_a_critic_of_its_own_learns_beside_the_actor():
    found = read(PPO, version="0.2")
    facts = load_facts(found.resolved)
    forecast = simulate(complete(found.draft, found.resolved, facts, "plan"), facts)
    spans = {span.name: span for span in forecast.trace.spans}
    actor, critic = spans["actor.update"], spans["critic.update"]
    assert critic.start_seconds < actor.end_seconds
    assert actor.start_seconds < critic.end_seconds


def test_engines_that_stand_on_a_critic_s_gpus_too_are_doubtful():
    old = read(f"{SHARED} --advantage-estimator ppo", version="0.2")
    assert any("a critic on GPUs of its own" in each for each in old.doubts())
    new = read(f"{SHARED} --advantage-estimator ppo --kl-loss-coef 0", version="0.3")
    assert not list(new.doubts())
    forked = read(f"{SHARED} --advantage-estimator ppo --critic-num-nodes 1", "miles")
    assert any("critic-num-nodes=1" in each for each in forked.doubts())
