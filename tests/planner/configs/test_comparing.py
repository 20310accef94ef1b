"""One job by several frameworks: what is compared with what, what is refused, and what the differences are called."""

import random
from dataclasses import replace

import pytest

from rlplan.errors import FileError, InfeasibleError, UnknownNameError
from rlplan.planner.answers.completion import complete
from rlplan.planner.answers.differences import causes_of
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.proposing import comparing
from rlplan.planner.configs.proposing.changes import broken_rules
from rlplan.planner.configs.proposing.comparing import (
    ComparisonRequest,
    _best,
    _no_worse,
    _same_layout,
    compare_frameworks,
    known_framework,
    words_of,
)
from rlplan.planner.configs.proposing.searching import best_plans_for
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import load_facts
from rlplan.results.differences import GENERATION, HOST, SYNC, UPDATE, ComparedStep
from rlplan.simulator.simulate import simulate
from tests.cases import draws, first, only
from tests.planner.configs.test_exporting import FILES

VERL = (
    "-m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 data.max_prompt_length=256 "
    "data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct "
    "actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.use_kl_loss=False "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.n=4 "
    "trainer.n_gpus_per_node=2 trainer.nnodes=1"
)
# Of each search, with the best plan so far.
SEARCH_SECONDS = 0.1
CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "critic.ppo_micro_batch_size_per_gpu=4",
)


def request_of(*more):
    """Return a request to compare a small run of verl's, as it stands."""
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=200, environment={})
    found = imported("verl", [*VERL.split(), *more], options)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved))
    return ComparisonRequest(
        job=found.resolved, plan=plan, facts_of=load_facts, seconds=SEARCH_SECONDS
    )


def compared(names, *more):
    """Return the steps of a run by framework and kind."""
    found = compare_frameworks(request_of(*more), [known_framework(name) for name in names])
    return {(step.framework, step.kind): step for step in found.steps}


def assert_sums(step):
    total = sum(each.difference_seconds for each in step.difference.stages)
    assert total == pytest.approx(step.difference.seconds, rel=1e-9, abs=1e-9)


def test_frameworks_without_a_writing_have_the_users_layout_alone():
    found = compared(["open-instruct"])
    assert found["open-instruct", "same layout"].plan is not None
    assert "what it can run is not searched" in found["open-instruct", "best settings"].reason
    own = found["verl-fsdp", "best settings"]
    assert own.difference.against == "verl (FSDP), as it is"
    assert_sums(own)
    assert own.forecast.iteration_seconds <= (
        found["verl-fsdp", "as it is"].forecast.iteration_seconds
    )


def test_a_first_sheet_without_a_sync_does_not_end_a_comparison(monkeypatch):
    first, check = [], comparing._check_sync

    def refused(sheet, *, apart):
        first.append(sheet.name)
        if sheet.name == first[0]:
            raise InfeasibleError(f"{sheet.title} has no weight sync")
        check(sheet, apart=apart)

    request = request_of()
    swift = known_framework("ms-swift")
    empty = comparing._empty(swift, "same layout")
    monkeypatch.setattr(comparing, "_check_sync", refused)
    kept = comparing.Kept(fields=comparing.KEPT[-1])
    step = comparing._of_sheet(request, request.plan, swift, empty, kept)
    assert len(set(first)) > 1
    assert step.plan.job.framework != first[0]


@pytest.mark.full
def test_best_settings_are_set_against_the_best_of_the_users_framework():
    found = compared(["verl-fsdp", "slime", "trl", "skyrl"])
    assert found["skyrl", "same layout"].difference.against == "verl (FSDP), as it is"
    assert found["slime", "same layout"].difference.against == "verl (FSDP), as it is"
    assert found["slime", "best settings"].difference.against == "verl (FSDP), best settings"
    for step in found.values():
        if step.difference is not None:
            assert_sums(step)
    assert any("clip_ratio_dual" in note for note in found["trl", "best settings"].notes)


def test_what_a_framework_has_no_role_for_is_refused_by_name():
    request = request_of(*CRITIC)
    steps = (
        _same_layout(request, request.plan, known_framework("trl")),
        _best(request, known_framework("trl")),
    )
    assert [step.reason for step in steps] == ["TRL runs no critic model"] * 2


def test_a_mode_that_a_framework_does_not_have_is_named():
    request = request_of()
    plan = replace(request.plan, mode="one-step-off", staleness=1)
    step = _same_layout(request, plan, known_framework("trl"))
    assert step.reason == "TRL has no mode one-step-off, only sync"


def test_the_users_plan_is_the_best_where_no_better_one_was_found():
    request = request_of()
    forecast = simulate(request.plan, load_facts(request.job))
    stands = ComparedStep(
        framework="x", title="x", kind="as it is", plan=request.plan, forecast=forecast
    )
    slower = replace(forecast, iteration_seconds=2 * forecast.iteration_seconds)
    best = replace(stands, kind="best settings", forecast=slower, gap=0.1)
    found = _no_worse(request.job, best, stands)
    assert (found.kind, found.forecast, found.gap) == ("best settings", forecast, 0.0)
    faster = replace(best, forecast=replace(forecast, iteration_seconds=1e-3))
    assert _no_worse(request.job, faster, stands) is faster


SLIME = (
    "train.py --hf-checkpoint /models/Qwen2.5-0.5B --num-rollout 10 --rollout-batch-size 16 --n-samples-per-prompt 4 "
    "--rollout-max-prompt-len 512 --rollout-max-response-len 2048 --global-batch-size 64 --colocate "
    "--actor-num-gpus-per-node 2 --use-dynamic-batch-size --max-tokens-per-gpu {budget} --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1 --rollout-num-gpus-per-engine 1"
)


def slimes(budget, *more, version=None, words=SLIME):
    """Return a request to compare a small packed run of slime's, as it stands."""
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=400, environment={}, version=version)
    found = imported("slime", [*words.format(budget=budget).split(), *more], options)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved))
    return ComparisonRequest(
        job=found.resolved, plan=plan, facts_of=load_facts, seconds=SEARCH_SECONDS
    )


@pytest.mark.parametrize(("budget", "told"), [(4096, 4096), (1024, 2560)])
def test_packed_micro_batches_are_kept_with_what_is_computed_again(budget, told):
    """verl refuses budgets below the longest prompt and response, 2,560 tokens; Megatron's flags do not."""
    request = slimes(budget)
    assert request.plan.tasks["actor.update"].token_budget == budget
    step = _same_layout(request, request.plan, known_framework("verl"))
    update = step.plan.tasks["actor.update"]
    assert (update.token_budget, update.recompute, update.offload) == (told, "full", True)
    assert step.plan.job.framework == "verl-megatron"
    named = any("micro-batches of 2,560 tokens in place of 1,024" in note for note in step.notes)
    assert named == (told != budget)


def test_limits_of_prompt_and_response_are_told_apart_where_a_job_has_one_of_both():
    request = slimes(4096, "--rollout-max-context-len", "2100")
    assert request.job.workload.longest_sequence_tokens == 2100
    step = _same_layout(request, request.plan, known_framework("verl"))
    told, work = step.plan.job.workload, request.job.workload
    assert told.max_total_tokens is None
    assert (told.prompt_tokens, told.response_tokens) == (work.prompt_tokens, work.response_tokens)
    room = f"room for sequences of {told.longest_sequence_tokens:,} tokens"
    assert told.longest_sequence_tokens > 2100
    assert any(note.startswith(room) for note in step.notes)


def test_what_streams_is_searched_once_where_whole_batches_are_refused_first(monkeypatch):
    searched, search = [], best_plans_for

    def recorded(target, job, facts_of, *, pinned, seconds):
        searched.append(pinned.asked.modes)
        return search(target, job, facts_of, pinned=pinned, seconds=seconds)

    monkeypatch.setattr(comparing, "best_plans_for", recorded)
    request = slimes(4096, "--rollout-max-context-len", "2100")
    asked = AskedSchedules(modes=("sync", "async"), staleness=1.0)
    step = _best(replace(request, asked=asked, seconds=None), known_framework("verl-fsdp"))
    assert step.plan is not None
    assert any(note.startswith("room for sequences of") for note in step.notes)
    assert searched == [("sync",), ("sync",), ("sync", "async")]


def small_slimes(prompts, samples, gpus, longest):
    """Return a request to compare a run of slime's with these numbers."""
    words = SLIME.replace("batch-size 16", f"batch-size {prompts}")
    words = words.replace("prompt 4", f"prompt {samples}").replace("node 2", f"node {gpus}")
    words = words.replace("size 64", f"size {prompts * samples}")
    return slimes(4096, words=words.replace("response-len 2048", f"response-len {longest}"))


@pytest.mark.parametrize("framework", only(["openrlhf"], frameworks_with("keys", "writing")))
def test_the_best_settings_of_a_framework_pass_its_rules_as_they_are_typed(framework, tmp_path):
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=400, mean_prompt=200, environment={})
    for seed in range(draws(1, 20)):
        drawn = random.Random(seed)
        prompts, samples, gpus = drawn.randint(2, 24), drawn.randint(2, 8), drawn.choice((2, 4, 8))
        request = small_slimes(prompts, samples, gpus, drawn.choice((512, 2048, 8192)))
        found = _best(request, known_framework(framework)).plan
        if found is not None:
            path = tmp_path / f"run{seed}.{FILES.get(framework, 'sh')}"
            path.write_text(exported(found, framework).text)
            assert not broken_rules(imported(framework, [str(path)], options).settings)


def test_a_batch_that_copies_do_not_share_equally_is_told_to_openrlhf_in_fewer_copies():
    """14 samples go to 8 copies by one or two, which OpenRLHF refuses; to 7 they go by two."""
    step = _best(small_slimes(7, 2, 8, 2048), known_framework("openrlhf"))
    assert 14 % step.plan.tasks["actor.update"].dp == 0


@pytest.mark.parametrize("framework", first(1, ["slime", "miles"]))
def test_adapters_are_refused_by_name_where_no_flag_trains_them(framework):
    lora = ("actor_rollout_ref.model.lora_rank=16", "actor_rollout_ref.actor.use_kl_loss=True")
    reason = _best(request_of(*lora), known_framework(framework)).reason
    assert "trains an adapter" in reason
    assert "rank 16" in reason


def test_jobs_of_an_older_slime_have_a_best_plan_of_today_s():
    request = slimes(4096, version="0.2")
    assert request.job.old_log_prob == "trainer"
    step = _best(request, known_framework("slime"))
    assert step.plan.job.old_log_prob == "engine"


def test_a_framework_that_generates_with_two_engines_is_searched_with_the_sheet_s_own():
    request = request_of()
    trainer = next(comparing._trainers(known_framework("trl")))
    static = replace(request.job.engines, generate="transformers-static")
    other = comparing._of_trainer(replace(request.job, engines=static), "trl", trainer)
    assert other.engines.generate == "vllm-0.15"


def test_ways_to_make_logits_that_an_engine_does_not_have_are_left_out_and_said():
    request = request_of(
        "actor_rollout_ref.actor.calculate_entropy=True",
        "actor_rollout_ref.actor.entropy_checkpointing=True",
        "actor_rollout_ref.actor.entropy_from_logits_with_chunking=True",
        "actor_rollout_ref.actor.use_torch_compile=False",
    )
    assert request.job.trainer("actor").logits == "entropy-checkpointed"
    step = _same_layout(request, request.plan, known_framework("openrlhf"))
    words = "makes logits as is usual in OpenRLHF, not by entropy-checkpointed"
    assert not step.reason
    assert words in step.notes


def test_what_cannot_be_told_is_said_in_words():
    error = FileError("plan", "cannot be told", field="job.adapters.actor", allowed="None")
    assert words_of(error) == "trains no adapter (LoRA)"
    other = FileError("plan", "is not what it has", field="tasks.actor.update.tp", value=2)
    assert words_of(other) == "tasks.actor.update.tp: is not what it has; found 2"


def test_causes_name_engine_layout_sync_and_framework():
    mine = request_of().plan
    other = request_of(
        "actor_rollout_ref.rollout.name=sglang",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.strategy=megatron",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    ).plan
    found = causes_of(other, mine)
    assert "engine sglang-0.5.6 in place of vllm-0.15-server" in found[GENERATION]
    assert "TP 2 DP 1 in place of TP 1 DP 2" in found[GENERATION]
    assert any("megatron-core" in words for words in found[UPDATE])
    assert "generation in TP 2 DP 1 in place of TP 1 DP 2" in found[SYNC]
    assert "batches are handed on by verl (Megatron) in place of verl (FSDP)" in found[HOST]
    assert causes_of(mine, mine) == {}


def test_frameworks_are_known_by_folder_and_by_trainer():
    assert known_framework("nemo-rl").sheet is None
    assert known_framework("verl-megatron").folder == "verl"
    with pytest.raises(UnknownNameError, match="did you mean 'slime'"):
        known_framework("slim")
