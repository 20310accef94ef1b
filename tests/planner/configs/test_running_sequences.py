"""How many sequences vLLM decodes at a time, where nobody says it, is decided by its GPU: 1,024, or 256 on A100 and small ones."""

from dataclasses import replace

import pytest

from rlplan.planner.configs.importing import imported
from tests.planner.configs import test_keys_of_open_instruct as open_instruct
from tests.planner.configs import test_keys_of_roll as roll
from tests.planner.configs import test_keys_of_trl as trl

WORDS = {
    "open-instruct": next(iter(open_instruct.BASES.values())),
    "roll": [*roll.BASES["together"], "max_running_requests=2000"],
    "trl": trl.BASES["a server"].split(),
}


@pytest.mark.parametrize("framework", WORDS)
@pytest.mark.parametrize(("gpu", "most"), [("h100-80gb-sxm", 1024), ("a100-80gb-sxm", 256)])
def test_the_gpu_says_how_many_sequences_run(framework, gpu, most):
    found = imported(framework, WORDS[framework], replace(roll.OPTIONS, gpu=gpu))
    assert found.draft.tasks["actor.generate"].max_running == most


def test_a_router_that_hands_out_fewer_requests_is_the_limit():
    options = replace(roll.OPTIONS, gpu="a100-80gb-sxm")
    found = imported("roll", roll.BASES["together"], options)
    assert found.draft.tasks["actor.generate"].max_running == 128
