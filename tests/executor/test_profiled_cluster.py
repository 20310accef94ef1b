"""`rlplan profile --address`: nodes of a cluster and the links between them, measured by Ray's own workers there."""

import json
from pathlib import Path

import pytest

from rlplan.estimate import Source
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.profiles.tables.table import read_profile
from tests.executor.plans import make_job
from tests.executor.test_joined_cluster import COMMAND, HEAD, NEIGHBOUR, SECOND, STATE, answer

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux"),
]

RULE = "def judge(prompt, response, row):\n    return float(len(response) % 3)\n"
JOB = """
algorithm: grpo
models: {actor: tiny, reference: tiny}
weights: random
workload: {prompts: 4, prompt_tokens: 4, response_tokens: 4, samples_per_prompt: 2}
cluster:
  - {gpu: cpu, gpus_per_node: 1, nodes: 2}
rewards: {function: 'rule.py:judge'}
"""


def profiled(raylets, folder, *options):
    given = ("profile", "--address", raylets.address, "--out", folder / "profile", "--quick")
    return answer(COMMAND, *given, *options, cwd=folder)


@pytest.mark.full
def test_a_profile_of_a_cluster_has_its_passes_and_the_links_between_its_nodes(raylets, tmp_path):
    assert answer(NEIGHBOUR, raylets.address)[1].strip() == "7"
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "rule.py").write_text(RULE)
    code, _, said = profiled(raylets, tmp_path, "--job", "job.yaml")
    assert code == 0, said[-3000:]
    found = read_profile(tmp_path / "profile")
    assert found.complete
    assert found.header.nodes == (HEAD, SECOND)
    assert found.header.network["backend"] == "gloo"
    assert {name for name, *_ in found.points("model_pass")} >= {"infer", "train", "decode"}
    kinds = {(kind, ranks, inside) for kind, ranks, inside, _ in found.points("collective")}
    assert kinds == {
        (kind, 2, 1)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")
    }
    judging = load_job(tmp_path / "job.yaml").rewards.function
    assert (f"rule:{judging}", 0) in found.points("call")
    device = load_facts(make_job(), tmp_path / "profile").device("cpu")
    link = device.collective(
        "all_reduce", 5000, 2, ranks_per_node=1, inter_node_bytes_per_second=1e9
    )
    assert link.source == Source.INTERPOLATED
    state = json.loads(answer(STATE, raylets.address)[1])
    assert (state["alive"], state["groups"], state["free"]) == (["neighbour"], [], state["total"])
    again(raylets, tmp_path, found)


def again(raylets, folder, found):
    """Measure what an interrupted session has left out, and nothing else."""
    table = folder / "profile" / "collective.csv"
    before = {path.name: path.read_bytes() for path in (folder / "profile").glob("*.csv")}
    first, *rows = table.read_text().splitlines()
    table.write_text("\n".join([first, *rows[1:]]) + "\n")
    code, _, said = profiled(raylets, folder, "--job", "job.yaml")
    assert code == 0, said[-3000:]
    after = {path.name: path.read_bytes() for path in (folder / "profile").glob("*.csv")}
    assert {name for name in before if after[name] != before[name]} == {"collective.csv"}
    resumed = read_profile(folder / "profile").points("collective")
    assert resumed.keys() == found.points("collective").keys()
    kept = [key for key, point in found.points("collective").items() if resumed[key] == point]
    assert len(kept) == len(rows) - 1
    code, _, said = profiled(raylets, folder, "--job", "job.yaml", "--nodes", "1")
    assert code == 2
    words = f"nodes: is a profile of other nodes, and is left as it is; found '{HEAD}, {SECOND}'"
    assert words in said


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--devices", "3"), "the profile wants 2 nodes with 3 CPU; missing: 2 nodes with 3 CPU"),
        (("--device", "l40s"), "--device: no node has one; found 'l40s'; allowed: cpu"),
        (("--address", "127.0.0.9:1"), "--address: no Ray answers at 127.0.0.9:1"),
    ],
)
def test_what_is_missing_is_said_in_one_line_before_anything_is_measured(
    raylets, tmp_path, options, words
):
    code, _, said = profiled(raylets, tmp_path, *options)
    assert code == 2, said[-2000:]
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "profile").exists()
