"""Better settings: what is typed behind a configuration does what is said of it, and spares no answer."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.proposing import improving
from rlplan.planner.configs.proposing.changes import (
    RetypedConfiguration,
    argument,
    assignments,
    broken_rules,
    faster,
    may_follow,
    smaller,
)
from rlplan.planner.configs.proposing.improving import Trials, improvements
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds
from tests.planner.configs import test_keys_of_ms_swift, test_keys_of_trl
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL
from tests.planner.configs.test_rules import ASYNC, ASYNC_START, MEGATRON, A, R

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=60, environment={"HOME": "~"})
# Of short responses on many GPUs, so that generation waits for training.
WAITING = (
    "rollout.nnodes=8",
    "data.max_response_length=512",
    f"{R}.n=8",
    f"{A}.ppo_mini_batch_size=128",
)
REFERENCE = "actor_rollout_ref.ref"
SLEEPING = ImportOptions(gpu="h100-80gb-sxm", mean_response=1500, environment={"HOME": "~"})


# Sequences are padded to their limits then: large micro-batches take much memory.
PADS = "actor_rollout_ref.model.use_remove_padding=False"


def micro_batches(update, log_probs, reference):
    """Return overrides of verl by which micro-batches have so many sequences."""
    return (
        f"{A}.use_dynamic_bsz=False",
        f"{A}.ppo_micro_batch_size_per_gpu={update}",
        f"{R}.log_prob_micro_batch_size_per_gpu={log_probs}",
        f"{REFERENCE}.log_prob_micro_batch_size_per_gpu={reference}",
    )


def proposed(framework, words, options=SLEEPING):
    """Return what is proposed, as it is typed, with the check that it is of."""
    checked = check_config(framework, words, options)
    return checked, {each.words: each for each in checked.better}


@pytest.fixture(scope="module")
def checked():
    return check_config("verl", [*ASYNC_START, *ASYNC, *WAITING], OPTIONS)


@pytest.mark.full
def test_no_streamed_iteration_is_shorter_than_it_is_said_to_be_at_least(checked):
    trials = list(improving._fitting(Trials(checked.plan, checked.facts, None)))[:3]
    assert checked.plan.mode == "async"
    assert trials
    for trial in trials:
        least_seconds = improving._least_seconds(trial.plan, checked.facts)
        seconds = simulate(trial.plan, checked.facts).iteration_seconds
        assert 0 < least_seconds <= seconds * (1 + 1e-9)


@pytest.mark.full
def test_settings_are_better_in_the_same_order_with_fewer_plans_played(checked, monkeypatch):
    played = []
    monkeypatch.setattr(
        improving, "simulate", lambda plan, facts: played.append(plan) or simulate(plan, facts)
    )
    given = (checked.plan, checked.facts, checked.forecast, None)
    spared, few = improvements(*given), len(played)
    monkeypatch.setattr(improving, "_least_seconds", lambda *_: 0.0)
    assert improvements(*given) == spared
    assert few < len(played) - few
    assert spared


TWO_RANKS = (MEGATRON, f"{A}.megatron.tensor_model_parallel_size=2")
RECOMPUTES = f"{A}.megatron.override_transformer_config.recompute_granularity"


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "said", "never"),
    [
        # FSDP has no tensor parallelism and computes whole layers again, or none.
        (
            (),
            {
                "actor_rollout_ref.model.enable_gradient_checkpointing=false",
                f"{A}.fsdp_config.param_offload=true, {A}.fsdp_config.optimizer_offload=true",
                f"{A}.ulysses_sequence_parallel_size=",
            },
            "tensor_model_parallel_size=2, dp",
        ),
        (
            TWO_RANKS,
            {f"{RECOMPUTES}=full", f"{A}.megatron.param_offload=true"},
            "enable_gradient_checkpointing",
        ),
    ],
)
def test_changes_are_said_in_keys_that_the_framework_has(more, said, never):
    checked = check_config("verl", [*VERL, f"{A}.ulysses_sequence_parallel_size=2", *more], OPTIONS)
    found, plan = checked.imported, checked.plan
    known = [assignments(each, plan, found) for each in faster(plan)]
    words = [
        ", ".join(word for key, value in each for word in argument(found.settings, key, value))
        for each in known
        if each
    ]
    assert not any(word.startswith(("actor.update", "actor.generate")) for word in words)
    for each in said:
        assert any(each in word for word in words), each
    assert not any(never in word for word in words)


MEGATRON_OF_SWIFT = (
    "megatron rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B-Instruct --NPROC_PER_NODE 8 --tensor_model_parallel_size 4 "
    "--micro_batch_size 1 --global_batch_size 64 --num_generations 8 --max_length 1024 --max_completion_length 2048 "
    "--vllm_mode colocate --sleep_level 2 --vllm_tensor_parallel_size 1"
).split()


@pytest.mark.parametrize(
    ("framework", "words", "said"),
    [
        ("verl", [*VERL, MEGATRON, f"{RECOMPUTES}=selective"], f"{RECOMPUTES}=null"),
        ("ms-swift", MEGATRON_OF_SWIFT, "--recompute_granularity none"),  # else it is selective
    ],
)
def test_a_core_of_attention_need_not_be_computed_again(framework, words, said):
    """By a fused kernel that takes time and spares nothing."""
    found = check_config(framework, words, OPTIONS)
    assert found.plan.tasks["actor.update"].recompute == "attention"
    changed = next(
        each for each in faster(found.plan) if each.get("actor.update") == {"recompute": "none"}
    )
    (assignment,) = assignments(changed, found.plan, found.imported)
    assert " ".join(argument(found.imported.settings, *assignment)) == said
    without = check_config(framework, [*words, *said.split()], OPTIONS)
    assert without.plan.tasks["actor.update"].recompute == "none"
    assert without.forecast.iteration_seconds < found.forecast.iteration_seconds
    assert without.forecast.memory == found.forecast.memory


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "key", "during"),
    [
        ((1, 64, 1), f"{R}.log_prob_micro_batch_size_per_gpu", "actor.compute_log_prob"),
        (
            (1, 1, 64),
            f"{REFERENCE}.log_prob_micro_batch_size_per_gpu",
            "reference.compute_log_prob",
        ),
        ((32, 1, 1), f"{A}.ppo_micro_batch_size_per_gpu", "actor.update"),
    ],
)
def test_the_pass_that_is_too_full_gets_a_smaller_micro_batch_by_its_own_key(sizes, key, during):
    checked, better = proposed("verl", [*VERL, *micro_batches(*sizes), PADS])
    assert not checked.forecast.feasible
    assert checked.first.during == during
    assert [words.partition("=")[0] for words in better].count(key) == 1
    assert all(each.changes == 1 for each in better.values())


@pytest.mark.full
def test_a_pass_of_openrlhf_that_only_infers_has_a_flag_of_its_own():
    words = [*OPENRLHF, "--rollout.micro_batch_size", "512"]
    _, better = proposed("openrlhf", words)
    sizes = [each.split() for each in better if each.startswith("--rollout.micro_batch_size ")]
    assert sizes
    assert all(int(size) < 512 for _, size, *_ in sizes)


def test_what_would_fit_is_said_to_fit_once_it_is_typed_where_any_change_leaves_that_much():
    words = [*OPENRLHF, "--rollout.micro_batch_size", "512"]
    checked, better = proposed("openrlhf", words)
    assert checked.verdict == "does not fit"
    assert better
    for each in better.values():
        assert check_config("openrlhf", [*words, *each.arguments], SLEEPING).verdict == "fits"


def test_what_would_be_faster_leaves_what_surely_fits_so():
    """A budget of 64,192 tokens would be fastest, and fill a GPU to 99 %."""
    words = [*VERL, *micro_batches(8, 8, 8), "data.max_response_length=7000"]
    checked, better = proposed("verl", words)
    assert checked.verdict == "fits"
    assert better
    for each in better.values():
        assert check_config("verl", [*words, *each.arguments], SLEEPING).verdict == "fits"


@pytest.mark.full
def test_flags_have_the_names_of_the_version_that_is_written_for():
    older = (
        "--pretrain meta-llama/Llama-3.1-8B --actor_num_gpus_per_node 4 --ref_num_gpus_per_node 2 "
    )
    older += "--critic_num_gpus_per_node 4 --vllm_num_engines 3 --vllm_tensor_parallel_size 2 "
    older += "--remote_rm_url x --zero_stage 3 --packing_samples --micro_rollout_batch_size 512"
    words = ["-m", "openrlhf.cli.train_ppo_ray", *older.split()]
    _, better = proposed("openrlhf", words)
    names = {word for each in better.values() for word in each.arguments if word.startswith("--")}
    assert "--micro_rollout_batch_size" in names
    assert not any("." in name for name in names)


@pytest.mark.full
def test_token_budgets_come_with_the_switch_that_turns_them_on():
    _, better = proposed("verl", [*VERL, *micro_batches(1, 1, 1)])
    budgets = [each for each in better if "max_token_len_per_gpu" in each]
    assert budgets
    assert all(f"{A}.use_dynamic_bsz=true" in each for each in budgets)


@pytest.mark.full
def test_what_off_switches_of_other_passes_hold_back_is_switched_on_with_the_actors():
    off = f"{R}.log_prob_use_dynamic_bsz=False"
    _, better = proposed("verl", [*VERL, *micro_batches(1, 1, 1), off])
    budgets = [each for each in better if "max_token_len_per_gpu" in each]
    assert budgets
    assert all(f"{R}.log_prob_use_dynamic_bsz=true" in each for each in budgets)


@pytest.mark.full
def test_a_plan_that_no_single_change_makes_fit_gets_the_fewest_that_do():
    words = [*VERL, MEGATRON, "actor_rollout_ref.model.path=Qwen/Qwen2.5-32B", "trainer.nnodes=1"]
    checked, better = proposed("verl", words)
    assert not checked.forecast.feasible
    assert {each.changes for each in better.values()} <= {2, 3}
    assert better
    trials = _trials(words)
    full = improving.passes_too_full(trials.plan, trials.facts)
    levers = [each for lever in smaller(trials.plan, full) for each in lever]
    assert all(one.over for each in levers if (one := trials.weighed(each, (0,))) is not None)


def _trials(words):
    checked = check_config("verl", words, SLEEPING)
    typed = RetypedConfiguration.of(words, SLEEPING, checked.imported, checked.plan, checked.facts)
    return Trials(checked.plan, checked.facts, typed, left=1000)


@pytest.mark.full
def test_recomputation_of_whole_layers_says_how_as_megatron_asks_for():
    words = [*VERL, MEGATRON, "actor_rollout_ref.model.path=Qwen/Qwen2.5-32B", "trainer.nnodes=1"]
    words += [f"{A}.megatron.{each}_offload=true" for each in ("param", "optimizer", "grad")]
    _, better = proposed("verl", [*words, f"{A}.megatron.tensor_model_parallel_size=8"])
    whole = [each for each in better if "recompute_granularity=full" in each]
    assert whole
    config = f"{A}.megatron.override_transformer_config"
    assert all(f"{config}.recompute_method=uniform" in each for each in whole)
    assert all(f"{config}.recompute_num_layers=1" in each for each in whole)


def test_a_script_that_hands_no_words_on_is_changed_in_its_settings(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"python3 {' '.join((*VERL, *micro_batches(1, 64, 1), PADS))}\n")
    checked, better = proposed("verl", [str(script)])
    assert not checked.forecast.feasible
    assert any(f"{R}.log_prob_micro_batch_size_per_gpu=" in each for each in better)


def test_keys_that_a_whole_file_lacks_are_added(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    _, better = proposed("nemo-rl", [str(path)], replace(SLEEPING, mean_response=300))
    assert any(each.startswith("++policy.sequence_packing.logprob_mb_tokens=") for each in better)
    assert any(each.startswith("policy.sequence_packing.train_mb_tokens=") for each in better)


GPUS = st.sampled_from(("h100-80gb-sxm", "a100-40gb-sxm", "h20", "l40s"))
MODELS = ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-32B")
SIZES = st.sampled_from((1, 2, 4, 8, 16, 32))


@st.composite
def configurations(draw):
    """Return a framework, and words that a user may give for it."""
    framework = draw(st.sampled_from(("verl", "verl", "openrlhf", "nemo-rl")))
    model, ranks, some, other = draw(st.sampled_from(MODELS)), draw(SIZES), draw(SIZES), draw(SIZES)
    if framework == "openrlhf":
        words = [
            *OPENRLHF,
            "--actor.model_name_or_path",
            model,
            "--ds.zero_stage",
            draw(st.sampled_from("23")),
        ]
        sizes = ["--train.micro_batch_size", str(some), "--rollout.micro_batch_size", str(other)]
        return framework, [
            *words,
            *draw(st.sampled_from(([], sizes, ["--train.dynamic_batch_enable"]))),
        ]
    if framework == "nemo-rl":
        packs = draw(st.booleans())
        return framework, [
            f"policy.model_name={model}",
            f"policy.dtensor_cfg.tensor_parallel_size={min(ranks, 8)}",
            f"policy.sequence_packing.enabled={str(packs).lower()}",
            f"policy.train_micro_batch_size={some}",
            f"policy.logprob_batch_size={other}",
        ]
    trainer = draw(
        st.sampled_from(
            ((), (MEGATRON, f"{A}.megatron.tensor_model_parallel_size={min(ranks, 8)}"))
        )
    )
    sizes = draw(
        st.sampled_from(
            (
                micro_batches(some, other, ranks),
                (f"{A}.ppo_max_token_len_per_gpu={5120 * some}",),
                (f"{R}.log_prob_max_token_len_per_gpu={5120 * other}",),
            )
        )
    )
    shares = f"{R}.gpu_memory_utilization={draw(st.sampled_from((0.3, 0.5, 0.8)))}"
    return framework, [
        *VERL,
        f"actor_rollout_ref.model.path={model}",
        "trainer.nnodes=1",
        *trainer,
        *sizes,
        shares,
    ]


@pytest.mark.full
@given(configuration=configurations(), gpu=GPUS)
def test_what_is_proposed_does_what_is_said_once_it_is_typed(configuration, gpu, tmp_path_factory):
    framework, words = configuration
    if framework == "nemo-rl":
        path = tmp_path_factory.mktemp("nemo") / "grpo.yaml"
        path.write_text(NEMO)
        words = [str(path), *words]
    options = replace(SLEEPING, gpu=gpu)
    try:
        checked = check_config(framework, words, options)
    except UserError:
        assume(False)
        return
    assume(checked.forecast is not None)
    typed = RetypedConfiguration.of(words, options, checked.imported, checked.plan, checked.facts)
    for each in checked.better:
        found = imported(framework, [*words, *each.arguments], options)
        facts = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, facts)
        again = simulate(plan, facts)
        assert again.feasible, each.words
        assert again.iteration_seconds == pytest.approx(each.seconds, rel=1e-9)
        assert broken_rules(found.settings) <= typed.broken
        assert not set(found.keys.unknown) - set(checked.imported.keys.unknown)
        assert plan != checked.plan
        if checked.forecast.feasible:
            assert each.changes == 1
            assert again.iteration_seconds < checked.forecast.iteration_seconds
        for word in each.arguments if framework == "verl" else ():
            others = [other for other in each.arguments if other != word]
            counts = may_follow((word.partition("=")[0], None), checked.imported)
            assert not counts or typed.sketched(others) != plan, (word, each.words)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        # FSDP 1, which is usual, has no policy of off-loading: FSDP 2 has, and its key is proposed with it.
        ((), {f"{A}.fsdp_config.offload_policy=true", f"{A}.strategy=fsdp2"}),
        pytest.param(
            (f"{A}.strategy=fsdp2",),
            {f"{A}.fsdp_config.offload_policy=true"},
            marks=pytest.mark.full,
        ),
    ],
)
def test_states_on_the_host_are_proposed_where_nothing_milder_makes_a_plan_fit(strategy, said):
    words = [*VERL, "actor_rollout_ref.model.path=Qwen/Qwen2.5-72B-Instruct", "trainer.nnodes=1"]
    words += [f"{R}.tensor_model_parallel_size=8", *strategy]
    checked, better = proposed("verl", words)
    assert not checked.forecast.feasible
    assert {frozenset(words.split()) & said for words in better} == {frozenset(said)}
    first = next(iter(better.values()))
    again = check_config("verl", [*words, *first.arguments], SLEEPING)
    assert again.forecast.feasible
    assert again.plan.job.trainer("actor").host_states
    assert again.forecast.iteration_seconds == pytest.approx(first.seconds)


@pytest.mark.full
def test_an_optimizer_on_the_host_is_proposed_with_how_much_of_it():
    words = [
        *VERL,
        MEGATRON,
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-72B-Instruct",
        "trainer.nnodes=1",
    ]
    words += [f"{R}.tensor_model_parallel_size=8", f"{A}.megatron.tensor_model_parallel_size=8"]
    config = f"{A}.optim.override_optimizer_config"
    _, better = proposed("verl", words)
    assert better
    for each in better:
        assert f"{config}.optimizer_cpu_offload=true" in each
        assert f"{config}.optimizer_offload_fraction=1.0" in each


def test_a_policy_of_off_loading_is_of_the_second_fsdp_alone():
    policy = f"{A}.fsdp_config.offload_policy=True"
    plain = check_config("verl", VERL, SLEEPING)
    first = check_config("verl", [*VERL, policy], SLEEPING)
    second = check_config("verl", [*VERL, policy, f"{A}.strategy=fsdp2"], SLEEPING)
    assert first.plan == plain.plan
    assert policy.partition("=")[0] in first.imported.keys.without_influence
    assert second.plan.job.trainer("actor").host_states


def test_a_search_that_finds_nothing_says_which_states_on_the_host_would_do():
    words = [*VERL, "actor_rollout_ref.model.path=Qwen/Qwen2.5-72B-Instruct", "trainer.nnodes=1"]
    found = imported("verl", [*words, f"{A}.strategy=fsdp2"], SLEEPING)
    with pytest.raises(InfeasibleError) as refused:
        plans_of(found.resolved, load_facts)
    said = re.search(
        r"by (\S+)=true \S+.strategy=fsdp2 \((trainers.actor.host_states) of a job\), the best plan takes (.*) a step$",
        str(refused.value),
    )
    assert said is not None
    assert said[1] == f"{A}.fsdp_config.offload_policy"
    job = found.resolved
    on_host = replace(job.trainer("actor"), host_states=True)
    trainers = FrozenDict({**(job.trainers or {}), "actor": on_host})
    best = plans_of(replace(job, trainers=trainers), load_facts).plans[0]
    assert said[3] == show_seconds(best.forecast.iteration_seconds)


SWIFT = (
    "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-32B-Instruct --use_vllm true --vllm_mode server "
    "--vllm_server_host x --tuner_type full --max_completion_length 2048 --per_device_train_batch_size 1 "
    "--num_generations 8 --beta 0.0 --deepspeed {} $@\n"
)


def swift(folder, states):
    """Return a script of ms-swift whose states DeepSpeed spreads as a word or a file says."""
    script = folder / "run.sh"
    script.write_text(SWIFT.format(states), encoding="utf-8")
    return str(script)


def test_keys_of_a_frameworks_own_file_are_proposed_by_the_word_that_names_it(tmp_path):
    script = swift(tmp_path, "zero3")
    checked, better = proposed("ms-swift", [script])
    assert not checked.forecast.feasible
    assert set(better) == {"--deepspeed zero3_offload"}
    (found,) = better.values()
    again = check_config("ms-swift", [script, *found.arguments], SLEEPING)
    assert again.forecast.iteration_seconds == pytest.approx(found.seconds)


def test_keys_of_a_file_of_ones_own_are_proposed_as_what_stands_in_it(tmp_path):
    own = tmp_path / "own.json"
    own.write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    _, better = proposed("ms-swift", [swift(tmp_path, own)])
    assert better
    for words, each in better.items():
        assert f"in {own}: zero_optimization.offload_" in words
        assert "--deepspeed." not in words
        assert each.arguments == ()


@pytest.mark.parametrize(
    ("keys", "base", "untyped", "said"),
    [
        (test_keys_of_trl, "vLLM beside", "deepspeed.", "--zero_stage 3"),
        (test_keys_of_ms_swift, "FSDP", "fsdp_config.", ""),
    ],
)
def test_keys_of_files_that_nobody_names_are_proposed_by_flags_that_there_are(
    keys, base, untyped, said
):
    words, framework = keys.BASES[base], keys.SHEET.name
    words = words.split() if isinstance(words, str) else words
    better = check_config(framework, words, keys.OPTIONS).better
    assert better
    assert not any(untyped in each.words for each in better)
    assert not said or said in {each.words for each in better}
    for each in better:
        again = check_config(framework, [*words, *each.arguments], keys.OPTIONS)
        assert again.forecast.iteration_seconds == pytest.approx(each.seconds)
