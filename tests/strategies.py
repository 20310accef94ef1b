"""Well-formed random jobs, plans and layouts for property tests."""

from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.layout import TrainLayout
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.workload import Empirical, Lognormal, Uniform, Workload

sizes = st.sampled_from([1, 2, 4])
train_layouts = st.builds(lambda p, t, d: TrainLayout(pp=p, tp=t, dp=d), sizes, sizes, sizes)


@st.composite
def distributions(draw):
    """Draw any of the distributions of lengths."""
    kind = draw(st.sampled_from(["constant", "uniform", "empirical", "lognormal"]))
    if kind == "constant":
        return draw(st.integers(1, 5000))
    if kind == "uniform":
        low = draw(st.integers(1, 100))
        return Uniform(low=low, high=draw(st.integers(low, low + 300)))
    if kind == "empirical":
        return Empirical(values=tuple(draw(st.lists(st.integers(1, 900), min_size=1, max_size=8))))
    mean = draw(st.floats(2, 800))
    return Lognormal(mean=mean, std=draw(st.floats(0.5, 900)), max=draw(st.integers(1, 3000)))


@st.composite
def architectures(draw, max_layers=8):
    """Draw a small dense transformer whose sizes fit together."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    head_dim = draw(st.sampled_from([8, 16, 64]))
    return ModelArchitecture(
        name="drawn",
        family="llama",
        hidden_size=heads * head_dim,
        num_layers=draw(st.integers(1, max_layers)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=draw(st.sampled_from([2, 3, 4])) * heads * head_dim,
        vocab_size=draw(st.sampled_from([256, 1024, 32000])),
        tied_embeddings=draw(st.booleans()),
    )


@st.composite
def jobs(draw):
    """Draw a resolved PPO job on one group of equal nodes."""
    model = draw(architectures())
    updates = draw(st.sampled_from([1, 2, 4]))
    return Job(
        name=draw(st.text(min_size=1, max_size=12)),
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), model)),
        workload=Workload(
            prompts=updates * draw(st.sampled_from([4, 8, 16])),
            prompt_tokens=draw(distributions()),
            response_tokens=draw(distributions()),
            updates=updates,
            epochs=draw(st.integers(1, 3)),
        ),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=draw(sizes), nodes=draw(st.integers(1, 3))),),
    )


@st.composite
def plans(draw):
    """Draw a plan whose fields are well formed, though its sizes need not agree."""
    job = draw(jobs())
    layout = st.builds(
        TaskPlan,
        pool=st.just("p0"),
        tp=sizes,
        pp=sizes,
        dp=sizes,
        micro_batch=st.integers(1, 64),
        recompute=st.sampled_from(["none", "selective", "full"]),
        zero=st.sampled_from([0, 1, 2, 3]),
        memory_fraction=st.floats(0.1, 1.0),
    )
    names = ("actor.generate", "critic.compute_values", "actor.update", "critic.update")
    return Plan(
        job=job,
        pools=(ResourcePool(name="p0", device="cpu", gpus=1, roles=("actor", "critic")),),
        tasks=FrozenDict({name: draw(layout) for name in names}),
        order=FrozenDict({"p0": names}),
    )
