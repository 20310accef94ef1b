"""Attention by kernels for sequences of unlike lengths: the numbers of the usual way, and who goes it.

Where there is no GPU the kernel is a written-out one, with the signature of PyTorch's own.
"""

import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.data.packing import pack
from rlplan.executor.model import attention
from rlplan.executor.model.attention import (
    NAMES,
    attend_by_kernel,
    attention_of,
    packed_attention,
    takes_kernel,
    varlen_kernel,
)
from rlplan.executor.model.building import family_config
from rlplan.executor.parallel.meshes import RankGroup, make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.passes import head_outputs, policy_reader
from rlplan.executor.weights.shard import build_shard
from rlplan.plan import TaskPlan
from rlplan.profiles.jobs.config.reading import read_hf_config
from tests.executor.plans import TINY
from tests.executor.test_pretrained import LAYOUTS, MODELS, log_probs_in, made
from tests.executor.test_shared_prompts import groups, sequences
from tests.executor.varlen_kernels import (
    from_the_first_key,
    reference,
    reference_of_2_11,
    without_windows,
)

CPU, DIM = torch.device("cpu"), 8
KERNELS = {"2.13": reference, "2.11": reference_of_2_11}
kernels = st.sampled_from(list(KERNELS))
WINDOWED = {"sliding_window": 3}


class Counting:
    """Stand in for PyTorch's kernel, and count its calls."""

    def __init__(self, kernel):
        self.kernel, self.calls, self.__signature__ = kernel, 0, inspect.signature(kernel)

    def __call__(self, *inputs, **settings):
        self.calls += 1
        return self.kernel(*inputs, **settings)


def put_in_place(patch, kernel):
    patch.setattr(attention, "varlen_kernel", lambda: kernel)
    patch.setattr(attention, "DEVICES", ("cpu",))


@pytest.fixture
def stand_in(monkeypatch):
    """Return what puts a kernel in the place of PyTorch's, on CPUs too."""

    def put(kernel):
        counting = Counting(kernel)
        put_in_place(monkeypatch, counting)
        return counting

    return put


def test_the_written_out_kernel_has_the_signature_of_pytorch():
    theirs = inspect.signature(varlen_kernel()).parameters.values()
    ours = inspect.signature(reference).parameters.values()
    assert [(each.name, each.kind, each.default) for each in ours] == [
        (each.name, each.kind, each.default) for each in theirs
    ]


def attended(attend, slots, parts, heads):
    """Return outputs and gradients at the tokens of a packed row."""
    filled = slots.runs.filled
    inputs = [part.clone().requires_grad_() for part in parts]
    output = attend(*inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(heads))
    weights[:, filled:] = 0  # filler is nobody's
    (output * weights).sum().backward()
    return output[:, :filled].detach(), *(part.grad[:, :, :filled] for part in inputs)


@pytest.mark.full
@given(
    drawn=groups,
    kernel=kernels,
    key_heads=st.sampled_from([1, 2]),
    shares=st.sampled_from([1, 3]),
    window=st.none() | st.integers(1, 12),
    filler=st.integers(0, 5),
)
def test_outputs_and_gradients_are_those_of_the_usual_way(
    drawn, kernel, key_heads, shares, window, filler
):
    tokens, parts = sequences(drawn)
    slots = pack(tokens, parts, length=pack(tokens, parts).length + filler).slots
    generator = torch.Generator().manual_seed(filler)
    heads = key_heads * shares
    inputs = [
        torch.randn(1, count, len(slots.places), DIM, generator=generator)
        for count in (heads, key_heads, key_heads)
    ]
    layer: Any = SimpleNamespace(num_key_value_groups=shares, is_causal=True, training=True)
    settings: Any = {"scaling": 0.3, "dropout": 0.0, "sliding_window": window}

    def usual(query, key, value):
        return packed_attention(layer, query, key, value, slots, **settings)[0]

    def by_kernel(query, key, value):
        kept: Any = {"scaling": 0.3, "window": window}
        return attend_by_kernel(KERNELS[kernel], query, key, value, slots, **kept)

    expected = attended(usual, slots, inputs, heads)
    found = attended(by_kernel, slots, inputs, heads)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@given(drawn=groups)
def test_a_sequences_own_tokens_are_its_last_ones(drawn):
    tokens, parts = sequences(drawn)
    packed = pack(tokens, parts)
    runs, length = packed.slots.runs, packed.length
    assert runs.filled == length
    of_each = torch.arange(length) if runs.found is None else runs.found
    assert torch.equal(of_each, packed.found)
    lengths = (parts != 0).sum(dim=1)
    assert torch.equal(runs.keys.diff(), lengths.int())
    for row in range(len(tokens)):
        mine = slice(*runs.keys[row : row + 2].tolist())
        own = torch.arange(*runs.queries[row : row + 2].tolist())
        assert torch.equal(of_each[mine][len(of_each[mine]) - len(own) :], own)


def test_rows_without_tokens_and_stripes_have_no_runs():
    tokens, parts = sequences([(3, [2, 4])])
    assert pack(tokens, torch.zeros_like(parts)).slots.runs is None
    assert pack(tokens, parts, ranks=RankGroup(2, 1)).slots.runs is None


def config_of(**changes):
    config = family_config(TINY)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def test_a_cpu_has_no_kernel():
    assert not takes_kernel(config_of(), CPU, packed_attention)
    assert attention_of(config_of(), CPU, recomputed=False) == NAMES[False, False]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("changes", [{}, WINDOWED])
def test_a_kernel_that_agrees_is_taken(stand_in, kernel, changes):
    kernel = stand_in(KERNELS[kernel])
    assert takes_kernel(config_of(**changes), CPU, packed_attention)
    assert kernel.calls == (2 if changes else 1)
    assert attention_of(config_of(**changes), CPU, recomputed=True) == NAMES[True, True]
    assert kernel.calls == (2 if changes else 1), "it is tried once"
    assert attention_of(config_of(**changes), None, recomputed=False) == NAMES[False, False]


def raising(error):
    def kernel(*_, **__):
        raise error

    return kernel


@pytest.mark.parametrize(
    ("kernel", "changes", "problem"),
    [
        (raising(RuntimeError("head dimension\n should be a multiple of 8")), {}, "head dimension should"),
        (raising(NotImplementedError("no such kernel on this device")), {}, "no such kernel"),
        (lambda *inputs, scale: inputs[0] * scale, {}, "unexpected keyword argument"),
        (without_windows, WINDOWED, "it is off by"),
        (from_the_first_key, {}, "it is off by"),
    ],
)  # fmt: skip
def test_a_kernel_that_fails_or_says_something_else_is_not(
    stand_in, logged, kernel, changes, problem
):
    stand_in(kernel)
    assert not takes_kernel(config_of(**changes), CPU, packed_attention)
    (message,) = logged
    assert problem in message


def test_a_kernel_without_windows_serves_models_without_any(stand_in):
    stand_in(without_windows)
    assert takes_kernel(config_of(), CPU, packed_attention)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": 50.0},
        {"attention_dropout": 0.1},
        {"use_bidirectional_attention": True},
    ],
)
def test_what_the_kernel_does_not_have_goes_the_usual_way(stand_in, changes):
    kernel = stand_in(reference)
    assert not takes_kernel(config_of(**changes), CPU, packed_attention)
    assert kernel.calls == 0


def shard_in(precision, folder=None, **settings):
    """Return a shard that is trained on one rank."""
    model = TINY if folder is None else read_hf_config(folder)
    layout = TaskPlan(pool="p0", micro_batch=4, **settings)
    mesh = make_mesh(task_positions(layout, 1), 0, CPU)
    return build_shard(
        model, "lm", mesh, role="actor", seed=1, precision=precision, folder=folder,
        learning_rate=1e-3, layout=layout,
    )  # fmt: skip


def said_and_gradient(shard):
    """Return the log-probabilities of sequences that share prompts, and their gradient."""
    tokens, parts = sequences([(5, [4, 3, 1]), (2, [5]), (6, [2, 5])])
    packed = pack(tokens % 60 + 3, parts, length=64)
    outputs = policy_reader(1.0)(head_outputs(shard, packed), packed)["log_probs"]
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    (outputs * weights).sum().backward()
    return outputs.detach(), shard.flat.gradients.clone()


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return what writes a folder of a model, by its name."""

    def write(name):
        family, differs = MODELS[name]
        folder = tmp_path_factory.mktemp("model")
        made(family, differs).save_pretrained(folder)
        return folder

    return write


# Softcaps and dropout, which a Seed-OSS has where its file says nothing, go the usual way.
BY_KERNEL = [name for name in MODELS if name not in {"gemma2", "seed_oss"}]


@pytest.mark.full
@pytest.mark.parametrize("name", BY_KERNEL)
def test_models_say_and_learn_by_kernel_what_they_do_without(stand_in, folders, name):
    folder = folders(name)
    expected = said_and_gradient(shard_in("fp32", folder))
    kernel = stand_in(reference)
    shard = shard_in("bf16", folder)
    kernel.calls = 0
    shard.precision = "fp32"  # what was decided stays; rounding would hide what is wrong
    found = said_and_gradient(shard)
    assert kernel.calls == 4
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("recompute", ["none", "selective", "alternate", "full"])
def test_passes_in_bf16_are_as_near_to_fp32_as_the_usual_ones(stand_in, folders, recompute):
    folder = folders("mistral")
    exact = said_and_gradient(shard_in("fp32", folder))
    usual = said_and_gradient(shard_in("bf16", folder, recompute=recompute))
    kernel = stand_in(reference)
    shard = shard_in("bf16", folder, recompute=recompute)
    kernel.calls = 0
    found = said_and_gradient(shard)
    assert kernel.calls == 4 + {"none": 0, "selective": 4, "alternate": 2, "full": 4}[recompute]
    for mine, theirs, true in zip(found, usual, exact, strict=True):
        assert distance(mine, true) < 2 * distance(theirs, true)


def test_softcaps_and_fp32_go_the_usual_way(stand_in, folders):
    folder = folders("gemma2")
    kernel = stand_in(reference)
    said_and_gradient(shard_in("bf16", folder))
    said_and_gradient(shard_in("fp32"))
    assert kernel.calls == 0


def test_inference_takes_the_kernel_too(stand_in):
    kernel = stand_in(reference)
    shard = shard_in("bf16")
    kernel.calls = 0
    tokens, parts = sequences([(5, [4, 3, 1]), (2, [5])])
    packed = pack(tokens, parts)
    with shard.without_gradients():
        head_outputs(shard, packed)
    assert kernel.calls == TINY.num_layers


def log_probs_by_kernel(rank, ranks, settings, folder, *, by_kernel):
    """Return the log-probabilities of a rank's rows in bf16, and how often a kernel was called."""
    counting = Counting(reference)
    with pytest.MonkeyPatch.context() as patch:
        if by_kernel:
            put_in_place(patch, counting)
        found = log_probs_in(rank, ranks, settings, folder, precision="bf16")
    return *found, counting.calls


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("layout", ["tp 2", "pp 2", "cp 2", "fully sharded", "tp 2, sequences cut"])
def test_ranks_of_every_layout_take_it_where_they_have_whole_sequences(
    layout, folders, worker_pool
):
    ranks, settings = LAYOUTS[layout]
    folder = folders("mistral")
    job = partial(log_probs_by_kernel, settings=settings, folder=folder)
    usual = worker_pool.on_ranks(ranks, partial(job, by_kernel=False))
    found = worker_pool.on_ranks(ranks, partial(job, by_kernel=True))
    trials = 2
    for (dp, values, calls), (dp_before, expected, _) in zip(found, usual, strict=True):
        assert dp == dp_before
        assert (calls > trials) == (layout != "cp 2")
        if expected is not None:
            assert values == pytest.approx(expected, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("changes", [{}, WINDOWED])
def test_pytorchs_kernel_is_taken_on_gpus_that_have_it(head_dim, changes):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("older GPUs have no such kernels")
    config = config_of(head_dim=head_dim, **changes)
    assert takes_kernel(config, torch.device("cuda", 0), packed_attention)
