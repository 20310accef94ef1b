"""How many requests an engine of slime or miles has at a time: limits of the whole engine, which groups of its ranks share."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
FLAGS = """train.py --hf-checkpoint /models/Qwen3-30B-A3B --num-rollout 10 --rollout-batch-size 512 --n-samples-per-prompt 8
    --rollout-max-response-len 8192 --colocate --global-batch-size 4096 --rollout-num-gpus-per-engine 8 --use-dynamic-batch-size
    --max-tokens-per-gpu 9216"""
GROUPS = "--sglang-enable-dp-attention --sglang-dp-size 8 --sglang-ep-size 8"


def read(more, framework="slime"):
    return imported(framework, f"{FLAGS} {more}".split(), OPTIONS)


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ("", 512),
        # scripts/run-kimi-k2-Instruct.sh of slime: "make every dp rank has 128 concurrency".
        ("--sglang-server-concurrency 1024", 1024),
        (f"{GROUPS} --sglang-server-concurrency 1024", 128),
        (GROUPS, 64),
        # sglang/srt, tp_worker.py: max_running_requests // dp_size of each group.
        (f"{GROUPS} --sglang-max-running-requests 96", 12),
        (f"{GROUPS} --sglang-max-running-requests 4", 1),
        ("--sglang-max-running-requests 96 --sglang-server-concurrency 2048", 96),
    ],
)
def test_groups_that_share_an_engine_s_requests_have_a_part_of_them(more, most):
    assert read(more).draft.tasks["actor.generate"].max_running == most


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_a_plan_of_such_groups_is_written_for_the_whole_engine(framework, tmp_path):
    found = read(f"{GROUPS} --sglang-server-concurrency 1024", framework)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    path = tmp_path / "run.sh"
    path.write_text(exported(plan, framework).text)
    assert "--sglang-server-concurrency 1024" in path.read_text()
    again = imported(framework, [str(path)], OPTIONS)
    assert again.draft.tasks == found.draft.tasks
