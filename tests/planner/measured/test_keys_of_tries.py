"""What `check-step` says to try: in the keys of what ran, where these change what is meant."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.measured.causes import Subject, _changed
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_importing import VERL

RUNNING = "actor_rollout_ref.rollout.max_num_seqs=512"
REFERENCE = "actor_rollout_ref.ref.fsdp_config.param_offload"


@pytest.mark.parametrize(
    ("version", "name", "field", "value", "said"),
    [
        (None, "actor.generate", "max_running", 512, RUNNING),
        ("0.4", "actor.generate", "max_running", 512, "max_running 512"),  # reaches no engine
        # A reference's weights are on the host whatever the key says.
        (None, "reference.compute_log_prob", "offload", False, "offload false"),
    ],
)
def test_a_key_is_said_where_it_has_that_effect_in_the_version_that_ran(
    version, name, field, value, said
):
    options = ImportOptions(gpu="a100-80gb", mean_response=500, version=version)
    found = imported("verl", (*VERL, f"{REFERENCE}=True"), options)
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "plan")
    ran = Subject(plan, facts, simulate(plan, facts), None, found)
    assert _changed(name, field, value, ran) == said
