"""What a user says of tools and turns beside a configuration, and the limits of its keys."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.environments import GivenEnvironments, cut_lengths
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.workload import Empirical, Environment, Lognormal, Uniform, mean_length
from tests.planner.configs.test_comparing import VERL

MULTI = "actor_rollout_ref.rollout.multi_turn"
TURNS = (f"{MULTI}.enable=True", f"{MULTI}.max_assistant_turns=6", f"{MULTI}.tool_config_path=t")
MEANS = GivenEnvironments(turns=4.0, observation_tokens=50.0, tool_seconds=2.0)


def read(*more, given=MEANS):
    options = ImportOptions(
        gpu="h100-80gb-sxm", mean_response=200, environment={}, environments=given
    )
    return imported("verl", [*VERL.split(), *more], options)


def test_means_become_one_environment_and_nothing_is_doubtful_any_more():
    found = read(*TURNS)
    (environment,) = found.job.environments
    assert environment.turns == Uniform(low=2, high=6), "at most 6, and 4 on average"
    assert environment.observation_tokens == 50
    assert environment.step_seconds == 2.0
    assert found.job.workload.max_total_tokens == 256 + 512, "responses' limit holds observations"
    assert not list(found.doubts())
    assert "said by the environments that are given" in found.keys.not_modelled.values()
    assert not any("one turn a response" in note for note in found.notes)
    assert any("from 2 to 6, evenly" in note for note in found.guesses)


def test_without_them_turns_are_asked_for():
    found = read(*TURNS, given=GivenEnvironments())
    assert not found.job.environments
    assert any("--environment FILE" in note for note in found.guesses)
    assert list(found.doubts())


@pytest.mark.parametrize("mean", [1.0, 1.5, 2.0, 3.25, 5.5])
def test_the_spread_of_turns_has_the_mean_that_was_given(mean):
    (environment,) = read(
        given=GivenEnvironments(turns=mean, observation_tokens=5.0, tool_seconds=0.0)
    ).job.environments
    assert mean_length(environment.turns) == pytest.approx(mean, abs=0.5)


def test_a_file_has_its_environments_within_the_limits_of_the_keys(tmp_path):
    path = tmp_path / "env.yaml"
    path.write_text(
        "environments:\n- {name: swe, turns: {distribution: empirical, values: [2, 30]}, "
        "observation_tokens: 900, step_seconds: 1.5}\n"
    )
    found = read(
        *TURNS,
        f"{MULTI}.max_user_turns=4",
        "data.max_obs_length=500",
        "data.max_response_length=8192",
        given=GivenEnvironments(file=path),
    )
    (environment,) = found.job.environments
    assert environment == Environment(
        name="swe",
        turns=Empirical(values=(2, 5)),
        observation_tokens=500,
        step_seconds=1.5,
    )
    assert any("at most 5 turns, at most 500 observation tokens" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"turns": 4.0}, "--observation-tokens: is missing"),
        ({"turns": 4.0, "observation_tokens": 5.0}, "--tool-seconds: is missing"),
        ({"tool_seconds": 4.0}, "--turns: is missing"),
        ({"turns": 9.0, "observation_tokens": 5.0, "tool_seconds": 0.0}, "at most 6"),
        ({"turns": 0.5, "observation_tokens": 5.0, "tool_seconds": 0.0}, "1 or more"),
    ],
)
def test_what_is_missing_or_contradicts_the_keys_is_refused(given, said):
    with pytest.raises(FileError, match=said):
        read(*TURNS, given=GivenEnvironments(**given))


def test_observations_that_leave_no_room_are_refused_by_the_key_of_the_limit():
    given = GivenEnvironments(turns=4.0, observation_tokens=500.0, tool_seconds=0.0)
    with pytest.raises(FileError, match=r"data\.max_response_length: leaves no room"):
        read(*TURNS, given=given)


def test_a_file_and_means_exclude_each_other(tmp_path):
    given = GivenEnvironments(file=tmp_path / "env.yaml", turns=2.0)
    with pytest.raises(FileError, match="has its turns and seconds itself"):
        read(given=given)


def test_lengths_are_cut_whatever_they_are():
    assert cut_lengths(9, 5) == 5
    assert cut_lengths(Uniform(low=1, high=9), 5) == Uniform(low=1, high=5)
    assert cut_lengths(Uniform(low=7, high=9), 5) == 5
    assert cut_lengths(Lognormal(mean=3, std=1, max=9), 5).max == 5
