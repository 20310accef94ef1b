"""A fixed set of plans whose forecasts are kept: layouts are written out, so that only costs move them."""

from collections.abc import Callable

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards
from rlplan.plan import Plan
from rlplan.profiles.catalog import load_model
from rlplan.workload import Lognormal, Uniform, Workload
from tests.planner.sound_plans import A100, plan_on, split_ppo

H100 = "h100-80gb-sxm"
ROLES = ("actor", "critic", "reference", "reward")
GPU_ENGINES = Engines(train="megatron-core", generate="vllm")


def _job(algorithm, models, cluster, *, engines=GPU_ENGINES, precision="bf16", rule=False, **work):
    fields = {"prompts": 1024, "prompt_tokens": 1024, "response_tokens": 1024, "updates": 8}
    return Job(
        algorithm=algorithm,
        models=FrozenDict({role: load_model(name) for role, name in models.items()}),
        workload=Workload(**(fields | work)),
        cluster=(cluster,),
        engines=engines,
        precision=precision,
        rewards=Rewards(function="digits", function_seconds_per_sample=0.002) if rule else None,
    )


def _ppo(model, gpu, nodes, **work):
    return _job(
        "ppo",
        dict.fromkeys(ROLES, model),
        NodeGroup(gpu=gpu, gpus_per_node=8, nodes=nodes, inter_node_gbps=200.0),
        **work,
    )


def _sizes(tp, pp, dp, **others):
    return {"tp": tp, "pp": pp, "dp": dp, **others}


def _training(tp, pp, dp, **others):
    return _sizes(tp, pp, dp, micro_batch=2, recompute="full", zero=1) | others


def llama_7b_colocated() -> Plan:
    """Return all roles on 16 A100, trained with TP 8, generating with TP 2."""
    infer, train = _sizes(8, 1, 2, micro_batch=8), _training(8, 1, 2)
    return plan_on(
        _ppo("llama-2-7b", A100, 2),
        {"p0": (16, ROLES)},
        {
            "actor.generate": ("p0", _sizes(2, 1, 8, max_running=256, memory_fraction=0.6)),
            "critic.compute_values": ("p0", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p0", infer),
            "actor.update": ("p0", train),
            "critic.update": ("p0", train),
        },
    )


def llama_7b_split() -> Plan:
    """Return two pools of 8 A100, NeMo-Aligner's placement."""
    return split_ppo(_ppo("llama-2-7b", A100, 2))


def llama_7b_two_copies() -> Plan:
    """Return an actor that generates on one node and trains on another."""
    infer, train = _sizes(8, 1, 1, micro_batch=8), _training(8, 1, 1)
    return plan_on(
        _ppo("llama-2-7b", A100, 2),
        {"p0": (8, ("actor", "reference", "reward")), "p1": (8, ("actor", "critic"))},
        {
            "actor.generate": ("p0", _sizes(2, 1, 4, max_running=256, memory_fraction=0.87)),
            "critic.compute_values": ("p1", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p0", infer),
            "actor.update": ("p1", train),
            "critic.update": ("p1", train),
        },
        transition="two-copies",
    )


def llama_13b_standalone() -> Plan:
    """Return every role on 8 of 32 A100."""
    infer, train = _sizes(8, 1, 1, micro_batch=8), _training(4, 2, 1)
    return plan_on(
        _ppo("llama-2-13b", A100, 4),
        {f"p{index}": (8, (role,)) for index, role in enumerate(ROLES)},
        {
            "actor.generate": ("p0", _sizes(2, 1, 4, max_running=256, memory_fraction=0.55)),
            "critic.compute_values": ("p1", _sizes(4, 2, 1, micro_batch=8)),
            "reference.compute_log_prob": ("p2", infer),
            "reward.compute_reward": ("p3", infer),
            "actor.update": ("p0", train),
            "critic.update": ("p1", train),
        },
    )


def llama_70b_pipelined() -> Plan:
    """Return actor and reference of 70B, critic and reward of 8B, on 64 H100 with TP 8 and PP 4."""
    models = {"actor": "llama-3.1-70b", "critic": "llama-3.1-8b"}
    models |= {"reference": "llama-3.1-70b", "reward": "llama-3.1-8b"}
    small = _sizes(8, 1, 8, micro_batch=4)
    return plan_on(
        _job("ppo", models, NodeGroup(gpu=H100, gpus_per_node=8, nodes=8, inter_node_gbps=3200)),
        {"p0": (64, ROLES)},
        {
            "actor.generate": ("p0", _sizes(8, 1, 8, max_running=128, memory_fraction=0.42)),
            "critic.compute_values": ("p0", small),
            "reference.compute_log_prob": ("p0", _sizes(8, 4, 2, micro_batch=4)),
            "reward.compute_reward": ("p0", small),
            "actor.update": ("p0", _training(8, 4, 2, micro_batch=1)),
            "critic.update": ("p0", _training(8, 1, 8)),
        },
        device=H100,
    )


def _long_answers():
    """Return lengths as reasoning models have them: short questions, answers with a long tail."""
    return {
        "prompts": 256,
        "samples_per_prompt": 8,
        "prompt_tokens": Uniform(low=64, high=512),
        "response_tokens": Lognormal(mean=900, std=700, max=3584),
        "updates": 4,
    }


def qwen_7b_grpo() -> Plan:
    """Return GRPO on 8 H100 with a rule on 32 CPU workers."""
    cluster = NodeGroup(gpu=H100, gpus_per_node=8, cpu_cores=32, inter_node_gbps=200.0)
    models = dict.fromkeys(("actor", "reference"), "qwen2.5-7b")
    return plan_on(
        _job("grpo", models, cluster, rule=True, **_long_answers()),
        {"p0": (8, ("actor", "reference")), "host": (32, ("rule",))},
        {
            "actor.generate": ("p0", _sizes(1, 1, 8, max_running=256, memory_fraction=0.42)),
            "reference.compute_log_prob": ("p0", _sizes(2, 1, 4, micro_batch=8)),
            "rule.compute_reward": ("host", {"dp": 32}),
            "actor.update": ("p0", _training(2, 1, 4, micro_batch=4)),
        },
        device=H100,
    )


def qwen_30b_experts() -> Plan:
    """Return GRPO of a mixture of experts on 32 H100, trained with TP 4 and PP 2."""
    models = dict.fromkeys(("actor", "reference"), "qwen3-30b-a3b")
    cluster = NodeGroup(gpu=H100, gpus_per_node=8, nodes=4, cpu_cores=32, inter_node_gbps=200.0)
    return plan_on(
        _job("grpo", models, cluster, rule=True, **_long_answers()),
        {"p0": (32, ("actor", "reference")), "host": (32, ("rule",))},
        {
            "actor.generate": ("p0", _sizes(4, 1, 8, max_running=256, memory_fraction=0.4)),
            "reference.compute_log_prob": ("p0", _sizes(4, 2, 4, micro_batch=4)),
            "rule.compute_reward": ("host", {"dp": 32}),
            "actor.update": ("p0", _training(4, 2, 4, micro_batch=1)),
        },
        device=H100,
    )


def tiny_on_cpu() -> Plan:
    """Return four tiny models on two CPU devices, by the device's sheet alone."""
    cluster = NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0)
    engines = Engines(train="torch-tp-dp", generate="torch-static")
    work = {"prompts": 64, "prompt_tokens": 16, "response_tokens": 16, "updates": 2}
    infer, train = _sizes(1, 1, 2, micro_batch=32), _sizes(1, 1, 2, micro_batch=16)
    return plan_on(
        _job(
            "ppo", dict.fromkeys(ROLES, "tiny"), cluster, engines=engines, precision="fp32", **work
        ),
        {"p0": (2, ROLES)},
        {
            "actor.generate": ("p0", _sizes(1, 1, 2, max_running=32)),
            "critic.compute_values": ("p0", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p0", infer),
            "actor.update": ("p0", train),
            "critic.update": ("p0", train),
        },
        device="cpu",
        transition="none",
    )


def tiny_grpo_on_cpu() -> Plan:
    """Return GRPO of tiny models on two CPU devices, whose engines compute a prompt once."""
    cluster = NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0)
    engines = Engines(train="torch-tp-dp", generate="torch-static")
    work = {"prompts": 16, "samples_per_prompt": 4, "prompt_tokens": 48, "response_tokens": 16}
    models = dict.fromkeys(("actor", "reference", "reward"), "tiny")
    infer = _sizes(1, 1, 2, micro_batch=16)
    job = _job(
        "grpo", models, cluster, engines=engines, precision="fp32", **(work | {"updates": 1})
    )
    return plan_on(
        job,
        {"p0": (2, ("actor", "reference", "reward"))},
        {
            "actor.generate": ("p0", _sizes(1, 1, 2, max_running=16)),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p0", infer),
            "actor.update": ("p0", _sizes(1, 1, 2, micro_batch=8)),
        },
        device="cpu",
        transition="none",
    )


PLANS: dict[str, Callable[[], Plan]] = {
    "ppo 7b, colocated on 16 a100": llama_7b_colocated,
    "ppo 7b, split over 16 a100": llama_7b_split,
    "ppo 7b, two copies of the actor on 16 a100": llama_7b_two_copies,
    "ppo 13b, standalone on 32 a100": llama_13b_standalone,
    "ppo 70b, pipelined on 64 h100": llama_70b_pipelined,
    "grpo 7b, long answers on 8 h100": qwen_7b_grpo,
    "grpo 30b of experts, on 32 h100": qwen_30b_experts,
    "ppo tiny, on 2 cpu": tiny_on_cpu,
    "grpo tiny, on 2 cpu": tiny_grpo_on_cpu,
}
