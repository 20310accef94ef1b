"""Devices of a job: figures of nodes that it leaves open, NVLink domains, and sheets of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rlplan.profiles.sheets
from rlplan.errors import FileError
from rlplan.files.decoding import load_yaml
from rlplan.files.writing import plain, write_yaml
from rlplan.job import NodeGroup
from rlplan.planner.plans.assembly import host_pool
from rlplan.planner.requests.drafts import load_request, read_draft
from rlplan.planner.requests.starter import starter_job
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_device, load_job, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import left_to_framework, on_usual_nodes, taken_from_sheet
from rlplan.simulator.placed import site_at
from rlplan.simulator.timeline.assemble import assumptions_of

SHEETS = rlplan.profiles.sheets._path("devices")


def job_on(*groups, **changes):
    """Return a resolved PPO job with a digits rule on these groups of nodes."""
    job = starter_job("ppo", "llama-2-7b", "a100", 8, Path())
    return resolve_job(replace(job, cluster=groups, **changes), Path())


def test_what_a_job_leaves_open_is_its_device_s_usual_node():
    (group,) = job_on(NodeGroup(gpu="H100", gpus_per_node=8, nodes=2)).cluster
    assert (group.gpu, group.inter_node_gbps, group.cpu_cores) == ("h100-80gb-sxm", 3200, 112)
    (group,) = job_on(NodeGroup(gpu="a100", gpus_per_node=4, nodes=2)).cluster
    assert (group.inter_node_gbps, group.cpu_cores) == (4 * 200, 64)
    told = NodeGroup(gpu="h100", gpus_per_node=8, nodes=2, inter_node_gbps=400, cpu_cores=7)
    (group,) = job_on(told).cluster
    assert (group.inter_node_gbps, group.cpu_cores) == (400, 7)
    assert taken_from_sheet(group, load_device("h100")) == (
        "nvlink_domain_gpus",
        "host_memory_bytes",
    )


@given(st.sampled_from(["h100", "gb200", "rtx-4090"]), st.integers(1, 16), st.integers(1, 200))
def test_a_resolved_group_stays_as_it_is(gpu, per_node, nodes):
    sheet = load_device(gpu)
    once = on_usual_nodes(NodeGroup(gpu=gpu, gpus_per_node=per_node, nodes=nodes), sheet)
    assert on_usual_nodes(once, sheet) == once
    assert once.linked_gpus % per_node == 0
    assert once.gpus % once.linked_gpus == 0
    assert once.linked_gpus <= max(per_node, sheet.nvlink_domain_gpus or 0)


@pytest.mark.parametrize(("nodes", "domain"), [(1, 4), (16, 64), (18, 72), (36, 72), (128, 64)])
def test_nodes_of_gb200_take_equal_parts_of_racks(nodes, domain):
    (group,) = job_on(NodeGroup(gpu="gb200", gpus_per_node=4, nodes=nodes)).cluster
    assert group.nvlink_domain_gpus == domain


def test_collectives_use_nvlink_over_a_whole_rack():
    job = job_on(NodeGroup(gpu="gb200", gpus_per_node=4, nodes=36))
    inside, over = site_at(job, "gb200", 0, 72), site_at(job, "gb200", 0, 144)
    assert (inside.ranks_per_node(16), inside.ranks_per_node(64), inside.spans_nodes) == (
        16,
        64,
        False,
    )
    assert (over.gpus_per_node, over.spans_nodes) == (72, True)
    assert site_at(job, "gb200", 64, 16).gpus_per_node == 8
    apart = NodeGroup(gpu="gb200", gpus_per_node=4, nodes=36, nvlink_domain_gpus=4)
    assert site_at(job_on(apart), "gb200", 0, 72).ranks_per_node(16) == 4


@pytest.mark.parametrize(("nodes", "per_node"), [(16, 16), (18, 16), (32, 4), (64, 4)])
def test_a_framework_without_regard_to_domains_scatters_groups_over_them(nodes, per_node):
    bare = NodeGroup(gpu="gb200", gpus_per_node=4, nodes=nodes)
    scattered = job_on(bare, framework="nemo-rl-megatron")
    site = site_at(scattered, "gb200", 0, 4 * nodes)
    assert site.ranks_per_node(16) == per_node
    assert site_at(job_on(bare, framework="verl-megatron"), "gb200", 0, 64).ranks_per_node(16) == 16
    placed = job_on(replace(bare, nvlink_domain_gpus=64), framework="nemo-rl-megatron")
    assert site_at(placed, "gb200", 0, 64).ranks_per_node(16) == 16


def test_another_framework_places_groups_as_it_does():
    bare = NodeGroup(gpu="gb200", gpus_per_node=4, nodes=32)
    for framework, domain in (("nemo-rl-megatron", 4), ("verl-megatron", 64)):
        job = job_on(bare, framework=framework)
        assert job.cluster[0].nvlink_domain_gpus == domain
        assert [group.nvlink_domain_gpus for group in left_to_framework(job)] == [None]
    told = job_on(replace(bare, nvlink_domain_gpus=32), framework="nemo-rl-megatron")
    assert [group.nvlink_domain_gpus for group in left_to_framework(told)] == [32]


def test_what_is_scattered_is_told():
    job = job_on(NodeGroup(gpu="gb200", gpus_per_node=4, nodes=32), framework="nemo-rl-megatron")
    said = "; ".join(assumptions_of(job, load_facts(job)))
    assert "NVLink within nodes (NeMo-RL (Megatron) places ranks without regard to domains" in said
    told = NodeGroup(gpu="gb200", gpus_per_node=4, nodes=32, nvlink_domain_gpus=64)
    job = job_on(told, framework="nemo-rl-megatron")
    assert "NVLink" not in "; ".join(assumptions_of(job, load_facts(job)))


def test_a_domain_holds_whole_nodes():
    with pytest.raises(FileError, match=r"cluster\.0\.nvlink_domain_gpus.*multiple of 8"):
        job_on(NodeGroup(gpu="h100", gpus_per_node=8, nodes=2, nvlink_domain_gpus=12))


def test_a_network_is_of_a_kind_with_a_sheet_and_one_for_all_nodes_of_a_device():
    node = NodeGroup(gpu="h100", gpus_per_node=8, nodes=2)
    with pytest.raises(FileError, match=r"cluster\.0\.network.*efa"):
        job_on(replace(node, network="token-ring"))
    with pytest.raises(FileError, match=r"cluster\.0\.network.*one kind"):
        job_on(replace(node, network="efa"), node)
    with pytest.raises(FileError, match=r"cluster\.0\.network.*one kind"):
        job_on(replace(node, network="efa"), replace(node, gpu="h100-80gb-sxm"))
    job = job_on(replace(node, network="efa"), replace(node, gpu="a100"))
    assert site_at(job, "h100-80gb-sxm", 0, 16).network == "efa"
    assert site_at(job, "a100-80gb-sxm", 0, 16).network is None


def test_rules_run_on_the_cores_of_all_nodes_but_not_on_more_than_there_are_responses():
    job = job_on(NodeGroup(gpu="a100", gpus_per_node=8, nodes=4, cpu_cores=180))
    assert host_pool(job).gpus == 4 * 180
    few = replace(job, workload=replace(job.workload, prompts=256))
    assert host_pool(few).gpus == 256
    mixed = job_on(
        NodeGroup(gpu="a100", gpus_per_node=8), NodeGroup(gpu="h100", gpus_per_node=8, nodes=2)
    )
    assert host_pool(mixed).gpus == 128 + 2 * 112


def test_what_sheets_say_is_told():
    job = job_on(NodeGroup(gpu="h100", gpus_per_node=8, nodes=2))
    equal, said = assumptions_of(job, load_facts(job))
    assert equal == (
        "every response has 1,024 tokens; where that is only the longest, give the mean (--mean-response; in a job "
        "workload.response_tokens: {distribution: logged, mean: ..., max: 1024})"
    )
    assert said == (
        "8 x h100-80gb-sxm a node, from its sheet: 3,200 Gbit/s a node, 112 CPU cores a node, "
        "6.88 USD per GPU and hour"
    )
    told = NodeGroup(
        gpu="h100", gpus_per_node=8, nodes=2, inter_node_gbps=400, cpu_cores=96, usd_per_gpu_hour=2
    )
    job = job_on(told)
    job = replace(job, workload=replace(job.workload, ignore_eos=True))
    assert assumptions_of(job, load_facts(job)) == ()
    silent = replace(job, rewards=replace(job.rewards, function_seconds_per_sample=None))
    (said,) = assumptions_of(silent, load_facts(silent))
    assert said.startswith("rule digits takes 1.0 ms a sample")


def test_a_device_without_measured_operators_says_whose_stand_in():
    gpu, kernels = "mi300x", "hopper"
    job = job_on(NodeGroup(gpu=gpu, gpus_per_node=8))
    facts = load_facts(job)
    assert any(
        f"the efficiencies of {kernels} stand in" in said for said in assumptions_of(job, facts)
    )
    borrowed = facts.device(gpu).gemm(4096, 4096, 4096, "bf16")
    measured = load_facts(job_on(NodeGroup(gpu="h100", gpus_per_node=8)))
    own = measured.device("h100-80gb-sxm").gemm(4096, 4096, 4096, "bf16")
    assert borrowed.spread_seconds / borrowed.seconds > 2 * own.spread_seconds / own.seconds


def test_products_on_mi300x_reach_the_rate_that_was_published():
    # SemiAnalysis 2024, MI300X vs H100 vs H200: 620 TFLOP/s in bf16.
    job = job_on(NodeGroup(gpu="mi300x", gpus_per_node=8))
    size = 8192
    seconds = load_facts(job).device("mi300x").gemm(size, size, size, "bf16").seconds
    assert 2 * size**3 / seconds == pytest.approx(620e12, rel=0.08)


def test_a_pool_may_name_its_device_in_short(tmp_path):
    job = plain(starter_job("ppo", "llama-2-7b", "H100", 8, Path()))
    pool = {"device": "H100", "gpus": 8, "roles": ["actor", "critic", "reference"]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"job": job, "pools": [pool]}))
    _, pinned = load_request(tmp_path / "plan.yaml")
    assert pinned.pools[0].device == "h100-80gb-sxm"


@pytest.fixture
def own_device(tmp_path):
    """Write a job on a device with a sheet of its own beside it; return the job's path."""
    text = (SHEETS / "h100-80gb-sxm.yaml").read_text()
    text = text.replace("name: h100-80gb-sxm\n", "name: my-gpu\n").replace("3.35e+12", "6.7e+12")
    (tmp_path / "my-gpu.yaml").write_text(text)
    job = plain(starter_job("ppo", "qwen2.5-0.5b", "h100", 1, Path()))
    job["cluster"][0]["gpu"] = "./my-gpu.yaml"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


def test_a_device_by_file_travels_with_the_plan(own_device, tmp_path):
    job = load_job(own_device)
    assert (job.cluster[0].gpu, job.devices["my-gpu"].memory_bytes_per_second) == ("my-gpu", 6.7e12)
    best = search(job, load_facts(job)).plans[0]
    elsewhere = tmp_path / "elsewhere" / "plan.yaml"
    write_yaml(elsewhere, best.plan)
    own_device.with_name("my-gpu.yaml").unlink()
    _, alone = read_draft(load_yaml(elsewhere), elsewhere)
    assert alone == job
    assert load_facts(alone).device("my-gpu").sheet == job.devices["my-gpu"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: my-gpu", "name: h100", "name: is the name of a device of the catalog"),
        ("architecture: hopper", "architecture: hoper", "did you mean 'hopper'"),
        ("kind: gpu", "kind: tpu", "kind"),
    ],
)
def test_a_wrong_sheet_of_a_device_is_named(own_device, old, new, said):
    sheet = own_device.with_name("my-gpu.yaml")
    sheet.write_text(sheet.read_text().replace(old, new))
    with pytest.raises(FileError, match=said) as error:
        load_job(own_device)
    assert "my-gpu.yaml" in str(error.value)
