"""What a profile of a job times beside its passes."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.job import Rewards
from rlplan.profiles.catalog import load_job
from rlplan_cli.profiling.rules import ROWS_OF_RULES, job_rules

DEMO = Path(__file__).parents[2] / "rlplan_cli" / "demo_job"


@pytest.fixture
def job():
    return load_job(DEMO / "job.yaml")


def test_a_profile_times_every_function_that_judges_on_the_jobs_prompts(job):
    both = replace(job, rewards=Rewards(function="digits", cost_function="copy"))
    rules = job_rules(both, DEMO)
    assert list(rules.functions) == ["digits", "copy"]
    assert 0 < len(rules.rows) <= ROWS_OF_RULES
    assert all(isinstance(row["prompt"], str) for row in rules.rows)


def test_without_prompts_functions_are_timed_on_made_up_ones_unless_their_time_is_given(job):
    made_up = replace(job, prompts_file=None, rewards=Rewards(function="digits"))
    assert len(job_rules(made_up, DEMO).rows) == ROWS_OF_RULES
    given = replace(made_up, rewards=Rewards(function="digits", function_seconds_per_sample=0.01))
    assert job_rules(given, DEMO) is None


def test_a_job_that_no_function_judges_times_none(job):
    assert job_rules(replace(job, rewards=None), DEMO) is None


def test_a_function_that_does_not_exist_is_named(job):
    with pytest.raises(UserError, match="colour"):
        job_rules(replace(job, rewards=Rewards(function="colour")), DEMO)
