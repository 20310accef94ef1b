"""What towers of images compute, in generation, in passes without gradients and in updates."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.models import Adapter, Batch, Shard
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.profiles.jobs.checks import JobPlace, check_images
from rlplan.profiles.jobs.logged_lengths import with_logged_lengths
from rlplan.profiles.sheets import sheet_names
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.setting import setting_of
from rlplan.simulator.costs.towers import around_sound, layers_of, tower_pass, training_passes
from rlplan.simulator.generation.judging import taught_workload
from rlplan.simulator.memory.task_memory import ACTIVATIONS, FRAGMENTATION, STEP
from rlplan.simulator.model import flops_of, layer_operators
from rlplan.simulator.placed import PlacedTask, site_at
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.trainers import TrainerOptions
from rlplan.workload import Logged, PromptImages, PromptSounds
from tests.simulator.cost_jobs import GRPO, facts_of, job_of

H100 = "h100-80gb-sxm"
IMAGES = PromptImages(tokens=1024)


def job(model="qwen2.5-vl-7b", images=IMAGES, samples=1, **fields):
    work = {
        "prompts": 128,
        "samples_per_prompt": samples,
        "prompt_tokens": 1536,
        "response_tokens": 512,
    }
    found = job_of(model, nodes=1, algorithm="grpo", **work)
    cluster = (NodeGroup(gpu=H100, gpus_per_node=8, nodes=1, inter_node_gbps=3200),)
    return replace(
        found, cluster=cluster, workload=replace(found.workload, images=images), **fields
    )


def placed(task="actor.update", said=None, **sizes):
    engine = "vllm-0.15" if task == "actor.generate" else "megatron-core-2025"
    said = job() if said is None else said
    layout = TaskPlan(pool="p0", engine=engine, **({"dp": 8} | sizes))
    return PlacedTask(GRPO[task], layout, site_at(said, H100, 0, 8), said, facts_of(said))


def parts(task="actor.update", said=None, **sizes):
    cost = passes_cost(placed(task, said, **({"micro_batch": 4} | sizes)))
    return {name: part.seconds for name, part in cost.parts}


def test_a_tower_computes_what_its_sizes_say():
    # Qwen2.5-VL: 4,096 patches of an image are 64 windows of 64, which 28 of 32 layers attend in.
    tower = load_model("qwen2.5-vl-7b").tower
    batch = Batch(sequences=1, tokens=4096, sequence_tokens=4096, head_tokens=0)
    flops = sum(
        count * flops_of(layer_operators(kind, Shard(), batch)) for kind, count in layers_of(tower)
    )
    products = 32 * 2 * 4096 * (4 * 1280**2 + 3 * 1280 * 3420)
    pairs = 28 * 64 * 64 * (64 + 0.5) + 4 * 4096 * (4096 + 0.5)
    assert flops == pytest.approx(products + 4 * 1280 * pairs, rel=1e-12)


def test_sizes_of_towers_have_the_parameters_of_their_files():
    # Biases, norms and tables of positions are beside the matrices, and sound of Omni beside images.
    known = [load_model(name) for name in sheet_names("models")]
    towers = [model for model in known if model.tower is not None and "omni" not in model.name]
    assert len(towers) > 30
    for model in towers:
        found = model.tower.parameters(model.hidden_size) / model.vision_parameters
        assert 0.98 < found < 1, model.name


def test_passes_take_longer_by_the_tower_s_and_nothing_else_changes():
    said, blind = parts(), parts(said=job(images=None))
    setting = setting_of(placed(micro_batch=4))
    model = load_model("qwen2.5-vl-7b")
    # 16 responses a rank, 4 a micro-batch, each with the image of its prompt; two updates of half of them.
    for name in ("forward", "backward"):
        each = tower_pass(setting, model, 4, 1024, name).total.seconds
        assert said[name] - blind[name] == pytest.approx(4 * each, rel=1e-6)
    assert {
        name: said[name] for name in said if name not in ("forward", "backward", "recompute")
    } == {name: blind[name] for name in blind if name not in ("forward", "backward", "recompute")}


def test_a_tower_that_does_not_learn_has_no_backward_pass():
    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    blind, said = parts(said=job(images=None)), parts(said=job(trainers=frozen))
    assert said["backward"] == blind["backward"]
    assert said["forward"] == parts()["forward"] > blind["forward"]
    adapted = {"adapters": FrozenDict({"actor": Adapter(rank=16)})}
    blind, said = (parts(said=job(images=each, **adapted)) for each in (None, IMAGES))
    assert said["backward"] == blind["backward"]


def test_few_images_cost_as_much_of_one_a_prompt_as_there_are():
    # A micro-batch of one sequence: one in ten has the pass of a tower over one image.
    whole, tenth, none = (
        parts(said=job(images=each), micro_batch=1)
        for each in (IMAGES, replace(IMAGES, per_prompt=0.1), None)
    )
    for name in ("forward", "backward"):
        assert tenth[name] - none[name] == pytest.approx((whole[name] - none[name]) / 10, rel=1e-9)


def test_samples_that_share_their_prompt_share_its_image():
    """A micro-batch of two prompts with two samples each has two images, not four, in its passes and of what is kept."""
    sharing = FrozenDict({"actor": TrainerOptions(shares_prompts=True)})

    def more(samples, micro_batch, trainers):
        said, blind = (
            job(images=each, samples=samples, trainers=trainers) for each in (IMAGES, None)
        )
        setting = setting_of(placed(said=said))
        whole = placed(said=said, micro_batch=micro_batch, recompute="full")
        bare = placed(said=blind, micro_batch=micro_batch, recompute="full")
        kept = [dict(task_memory(each).transient)[ACTIVATIONS] for each in (whole, bare)]
        passed = training_passes(setting, whole, micro_batch, "forward").total.seconds
        return passed, kept[0] - kept[1]

    two = more(1, 2, FrozenDict())
    assert more(2, 4, sharing) == two
    assert more(4, 4, FrozenDict()) == more(1, 4, FrozenDict()) != two
    # Prompts of three samples are cut by micro-batches of four, which may hold pieces of more than two.
    assert more(3, 4, sharing)[1] == 2 * two[1]


def test_a_served_teacher_computes_images_too():
    work = job(samples=4).workload
    assert taught_workload(work).images == IMAGES


def test_reference_passes_pay_the_tower_too():
    said, blind = (parts("reference.compute_log_prob", job(images=each)) for each in (IMAGES, None))
    assert said["forward"] > blind["forward"]


def test_generation_computes_an_image_once_for_samples_of_a_prompt_whose_cache_is_shared():
    def more(samples):
        seconds = [
            task_cost(placed("actor.generate", job(images=each, samples=samples))).total.seconds
            for each in (IMAGES, None)
        ]
        return seconds[0] - seconds[1]

    model, setting = load_model("qwen2.5-vl-7b"), setting_of(placed("actor.generate"))
    each = tower_pass(setting, model, 8, 1024, "forward").total.seconds / 8
    assert more(1) == pytest.approx(16 * each, rel=0.05)  # 16 prompts a replica
    assert more(4) == pytest.approx(more(1), rel=0.05)


@given(st.integers(1, 16), st.integers(16, 4096), st.sampled_from(["qwen3-vl-8b", "internvl3-8b"]))
def test_more_images_and_larger_ones_never_take_less(images, tokens, name):
    model = load_model(name)
    setting = setting_of(placed(said=job(name)))

    def seconds(count, size):
        return tower_pass(setting, model, count, size, "forward").total.seconds

    assert seconds(images + 1, tokens) >= 0.95 * seconds(images, tokens)
    assert seconds(images, 2 * tokens) >= seconds(images, tokens)


@pytest.mark.parametrize(
    ("model", "images", "words"),
    [
        ("qwen3-8b", IMAGES, "given for qwen3-8b, which reads none"),
        ("kimi-k2.5", IMAGES, "of whose tower only the parameters are known"),
        (
            "qwen2.5-vl-7b",
            PromptImages(tokens=1024, per_prompt=2),
            "have 2,048 tokens a prompt, and prompts 1,536",
        ),
    ],
)
def test_images_that_no_tower_computes_or_that_do_not_fit_are_refused(model, images, words):
    with pytest.raises(FileError, match=words):
        check_images(job(model, images), JobPlace(file="job.yaml", prefix=""))


def test_a_model_of_text_has_no_tower_to_freeze():
    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    place = JobPlace(file="job.yaml", prefix="")
    check_images(job(images=None, trainers=frozen), place)
    with pytest.raises(FileError, match=r"trainers.actor.freezes_tower: is on, and qwen3-8b reads"):
        check_images(job("qwen3-8b", None, trainers=frozen), place)


def test_prompts_of_as_many_tokens_as_their_image_have_room_for_it():
    # Of prompts that a log has cut at 400, a mean of 335 is one of 334.99999999999994.
    said = job(images=PromptImages(tokens=335))
    work = replace(said.workload, prompt_tokens=Logged(mean=335, max=400))
    place = JobPlace(file="job.yaml", prefix="")
    check_images(replace(said, workload=with_logged_lengths(work, place)), place)


def test_a_tower_that_learns_keeps_what_its_layers_keep():
    # Recomputed in full, each of 32 layers keeps its input: 4 images of 4,096 patches, 1,280 values of 2 bytes.
    def held(images, **fields):
        found = placed(said=job(images=images, **fields), micro_batch=4, recompute="full")
        return dict(task_memory(found).transient)[ACTIVATIONS]

    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    assert held(IMAGES) - held(None) == 32 * 4 * 4096 * 1280 * 2
    assert held(IMAGES, trainers=frozen) == held(None)


@pytest.mark.parametrize(("model", "sizes"), [("qwen2.5-vl-7b", {"tp": 2, "dp": 4}), ("qwen3-vl-30b-a3b", {"ep": 8})])  # fmt: skip
def test_a_frozen_tower_has_no_gradients_and_no_states_of_an_optimizer(model, sizes):
    # Megatron-Core keeps gradients in fp32 (4 bytes), and steps 12 bytes of states, sharded over its ranks.
    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    tower = -(-load_model(model).vision_parameters // sizes.get("tp", 1))
    held = []
    for said in (job(model), job(model, trainers=frozen)):
        found = placed(said=said, micro_batch=4, zero=1, **sizes)
        held.append({**task_memory(found).resident, **task_memory(found).transient})
    spared = {name: held[0][name] - held[1][name] for name in held[0]}
    assert spared.pop("actor gradients") == tower * 4
    ranks = sizes.get("dp", 8)
    assert spared.pop("actor optimizer states") == pytest.approx(tower / ranks * 12, abs=24)
    assert spared.pop(ACTIVATIONS) > 0  # what its layers would keep for a backward pass
    assert {name for name, size in spared.items() if size} <= {STEP, FRAGMENTATION}


def test_a_frozen_tower_is_not_stepped_nor_its_gradients_reduced():
    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    learns, rests = parts(zero=1), parts(said=job(trainers=frozen), zero=1)
    model = load_model("qwen2.5-vl-7b")
    share = model.vision_parameters / placed(micro_batch=4).parameters
    for name in ("gradient reduction", "optimizer"):
        assert rests[name] == pytest.approx(learns[name] * (1 - share), rel=0.02)


CLIP = PromptSounds(tokens=750)  # half a minute for Qwen2.5-Omni


def test_a_tower_of_sound_computes_what_its_sizes_say():
    # Qwen2.5-Omni: 750 tokens are 3,000 frames, halved to 1,500 positions in 15 windows of 100 in each of 32 layers.
    model = load_model("qwen2.5-omni-7b")
    batch = Batch(sequences=1, tokens=1500, sequence_tokens=1500, head_tokens=0)
    flops = sum(
        count * flops_of(layer_operators(layer, Shard(), batch))
        for layer, count in layers_of(model.sound)
    )
    products = 32 * 2 * 1500 * (4 * 1280**2 + 2 * 1280 * 5120)
    assert flops == pytest.approx(products + 4 * 1280 * 32 * 15 * 100 * (100 + 0.5), rel=1e-12)
    around = 2 * (3000 * 384 * 1280 + 1500 * 3840 * 1280 + 750 * 1280 * 3584)
    assert flops_of(around_sound(model.sound, 750)) == around


def test_convolutions_over_frequency_are_products_of_what_they_see():
    # Qwen3-Omni: of a second, 50 x 64, 25 x 32 and 13 x 16 places see 3 x 3 of the channels before; 13 are tokens.
    sound = load_model("qwen3-omni-30b-a3b").sound
    each = 9 * 480 * 480
    expected = 50 * 64 * 9 * 480 + (25 * 32 + 13 * 16) * each
    expected += 13 * (16 * 480 * 1280 + 1280 * 1280 + 1280 * 2048)
    assert flops_of(around_sound(sound, 13)) == 2 * expected
    assert (sound.tokens_per_second, sound.window_positions) == (13, 8 * 13)


def test_sizes_of_towers_of_sound_have_the_parameters_of_their_files():
    known = [load_model(name) for name in sheet_names("models")]
    hearing = [model for model in known if model.sound is not None]
    assert len(hearing) == 3
    for model in hearing:
        found = model.tower.parameters(model.hidden_size) + model.sound.parameters
        assert 0.98 < found / model.vision_parameters < 1, model.name


def test_clips_cost_what_their_tower_takes_and_learn_where_that_of_images_does_not():
    def work(**held):
        said = job("qwen2.5-omni-7b", images=held.pop("images", None), **held)
        return replace(said, workload=replace(said.workload, sounds=CLIP))

    blind, said = parts(said=job("qwen2.5-omni-7b", images=None)), parts(said=work())
    setting = setting_of(placed(said=work(), micro_batch=4))
    model = load_model("qwen2.5-omni-7b")
    for name in ("forward", "backward"):
        each = tower_pass(setting, model, 4, 750, name, "sounds").total.seconds
        assert said[name] - blind[name] == pytest.approx(4 * each, rel=1e-6)
    frozen = FrozenDict({"actor": TrainerOptions(freezes_tower=True)})
    assert parts(said=work(trainers=frozen))["backward"] == said["backward"]
    both, rests = (parts(said=work(images=IMAGES, **each)) for each in ({}, {"trainers": frozen}))
    assert both["forward"] == rests["forward"] > said["forward"]
    assert rests["backward"] == pytest.approx(said["backward"], rel=1e-9)
    assert rests["backward"] < both["backward"]

    def held(said):
        return dict(task_memory(placed(said=said, micro_batch=4, recompute="full")).transient)

    # Recomputed in full, each of 32 layers keeps its input: 4 clips of 1,500 positions, 1,280 values of 2 bytes.
    kept = held(work())[ACTIVATIONS] - held(job("qwen2.5-omni-7b", images=None))[ACTIVATIONS]
    assert kept == 32 * 4 * 1500 * 1280 * 2


def test_sound_for_a_model_that_hears_none_or_that_prompts_have_no_room_for_is_refused():
    place = JobPlace(file="job.yaml", prefix="")
    for model, sounds, words in (
        (
            "qwen2.5-vl-7b",
            CLIP,
            "workload.sounds: are given for qwen2.5-vl-7b, of whose tower only",
        ),
        ("qwen3-8b", CLIP, "workload.sounds: are given for qwen3-8b, which reads none"),
        (
            "qwen2.5-omni-7b",
            PromptSounds(tokens=600),
            "have 1,624 tokens a prompt, and prompts 1,536",
        ),
    ):
        images = IMAGES if model == "qwen2.5-omni-7b" else None
        said = job(model, images)
        with pytest.raises(FileError, match=words):
            check_images(replace(said, workload=replace(said.workload, sounds=sounds)), place)
