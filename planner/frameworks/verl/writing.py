"""verl: a launch script with one override a line."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rlplan.job import Role
from rlplan.plan import TaskPlan
from rlplan.planner.configs.losses import NO_LIMIT
from rlplan.planner.configs.models import published_four_bits
from rlplan.planner.configs.reading.sheet import ROLE, Scalar
from rlplan.planner.configs.verl_family import NO_DUAL_CLIP
from rlplan.planner.configs.writing.export import (
    UPDATE,
    Export,
    Variable,
    launch_script,
    states_leaving,
)
from rlplan.profiles.catalog import load_engine
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions
from rlplan.units import MIB

ROLLOUT, REWARD = "actor_rollout_ref.rollout", "reward.reward_model"
TRAINER: Final = "python3 -m verl.trainer.main_ppo"
ONE_STEP_OFF: Final = "python3 -m verl.experimental.one_step_off_policy.main_ppo"
FULLY_ASYNC: Final = "python3 -m verl.experimental.fully_async_policy.fully_async_main"
# Prompts of a whole training: fully asynchronous trainers want a number, which no plan has.
ROLLOUT_STEPS: Final = Variable(
    name="TOTAL_ROLLOUT_STEPS", default="100000", meaning="prompts of the whole training"
)
DATA: Final = {
    "train_files": Variable(name="TRAIN_FILES", default=None, meaning="parquet file with prompts"),
    "val_files": Variable(name="VAL_FILES", default=None, meaning="parquet file for validation"),
}
FP8_RECIPES: Final = {"fp8": "blockwise", "mxfp8": "mxfp8"}
TOOLS: Final = Variable(
    name="TOOL_CONFIG", default=None, meaning="YAML file with the tools that play the environments"
)
# Which FSDP trains a role: the first one has units of either frozen weights or trained ones.
STRATEGY: Final = f"{ROLE}.strategy"
MODELS: Final[tuple[Role, ...]] = ("actor", "critic", "reward")


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    _check(export)
    export.put("engine", export.trainer)
    start = _mode(export)
    _work(export)
    export.put_positions()
    export.values["actor_rollout_ref.model.path"] = export.model("actor")
    for role in export.roles:
        if role == "reward":
            _scored(export)
        else:
            _role(export, role)
    _generation(export)
    _losses(export)
    _sampling(export)
    return start


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return launch_script(export, start, lambda key, value: f"{export.prefix(key)}{key}={value}")


def _check(export: Export) -> None:
    """Refuse roles, and pools, that verl does not have."""
    export.check_roles(MODELS, ("reference",))
    for role in export.roles:
        if role != "reward":
            export.check_home(role, ": all that is trained or compared shares one pool")
    _check_layouts(export)


def _check_layouts(export: Export) -> None:
    """Refuse layouts of their own for roles that share a process which has one."""
    common, actor = export.sheet.trainers[export.trainer].in_common, export.layout("actor")
    for task in export.tasks:
        if task.kind == "generate" or task.role not in export.sheet.roles:
            continue
        layout = export.plan.tasks[task.name]
        for name in common:
            wanted, found = _cut(actor, name), _cut(layout, name)
            if wanted != found and (name != "chunks" or task.kind == "train"):
                problem = (
                    f"is not the actor's {name} {wanted}, and Megatron has one layout a process"
                )
                raise export.refused(f"tasks.{task.name}.{name}", problem, f"{wanted}", found)


def _cut(layout: TaskPlan, name: str) -> int:
    """Return a size of a layout; experts that are cut as all else is are cut over its tensor ranks."""
    if name == "expert_tp" and layout.ep > 1:
        return layout.expert_tp or layout.tp
    return int(getattr(layout, name) or 1)


def _mode(export: Export) -> str:
    """Write the pools' nodes and how iterations follow each other, and return what starts them."""
    plan = export.plan
    nodes, gpus = export.nodes(export.pool("actor"))
    export.put("nodes", nodes)
    export.put("gpus_per_node", gpus)
    if not export.apart:
        return TRAINER
    pool = plan.pool(export.generate.pool)
    if not (plan.flow.is_batch_ahead or plan.flow.is_endless):
        problem = f"generates on pool {pool.name}, apart from training, in mode {plan.mode}"
        raise export.refused("mode", problem, "one-step-off, async, or generation where it trains")
    nodes, gpus = export.nodes(pool)
    if plan.flow.is_endless and _is_separate(export):
        every = plan.sync_every
        export.put("trainer_mode", "separate_async")
        export.put("sync_step", every)
        export.put("off_policy_steps", round(plan.staleness))
        export.put("sync_backend", "nccl")
        export.values |= {f"{ROLLOUT}.nnodes": nodes, f"{ROLLOUT}.n_gpus_per_node": gpus}
        return TRAINER
    export.put("rollout_nodes", nodes)
    export.put("rollout_gpus_per_node", gpus)
    export.put("hybrid", False)
    export.put("sync_backend", "nccl")
    if plan.flow.is_batch_ahead:
        export.values["hydra.searchpath"] = "[pkg://verl.trainer.config]"
        return ONE_STEP_OFF
    if plan.in_flight == "keep":
        problem = "goes on with responses under way on their old cache"
        raise export.refused("in_flight", problem, "recompute, drain", plan.in_flight)
    export.put("staleness", plan.staleness_fraction)
    export.put("trigger", plan.sync_every)
    export.put("require_batches", plan.job.workload.updates)
    export.put("partial_rollout", plan.in_flight == "recompute")
    export.put("calculates_log_probs", True)
    export.values["rollout.total_rollout_steps"] = ROLLOUT_STEPS
    return FULLY_ASYNC


def _is_separate(export: Export) -> bool:
    """Tell whether the trainer of version 1 says the schedule: whole updates, each iteration one, in no script of the other's."""
    plan = export.plan
    if "fully_async" in (export.into or ""):
        return False
    whole = float(plan.staleness).is_integer() and plan.staleness >= plan.sync_every
    return whole and plan.in_flight == "recompute" and plan.job.workload.updates == 1


def _work(export: Export) -> None:
    plan, work = export.plan, export.plan.job.workload
    fully = "async_training.staleness_threshold" in export.values
    separate = plan.flow.is_endless and not fully
    export.put("prompts", 0 if fully else work.prompts * (plan.sync_every if separate else 1))
    if fully:
        export.put("gen_prompts", 1)
    export.put("mini_prompts", export.update_size(work.prompts, "prompt"))
    export.put("samples", work.samples_per_prompt)
    export.put("epochs", work.epochs)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response + export.longest_observations)
    if work.max_total_tokens is not None:
        export.put("max_model_len", work.max_total_tokens)
    export.values |= {f"data.{name}": each for name, each in DATA.items()}
    export.put_algorithm()
    if export.turns > 1:
        _turns(export)


def _turns(export: Export) -> None:
    """Write that the model answers in turns; what tools do is said in a file of their own."""
    export.put("multi_turn", True)
    export.put("turns", export.turns)
    export.values[f"{ROLLOUT}.multi_turn.tool_config_path"] = TOOLS
    export.values[f"{ROLLOUT}.agent.default_agent_loop"] = "tool_agent"
    export.notes.append(
        f"{ROLLOUT}.multi_turn.max_tool_response_length cuts observations off by characters, not tokens: the plan "
        f"counts with {export.longest_observations:,} tokens of them in an episode at most"
    )


def _role(export: Export, role: Role) -> None:
    """Write one role's engine."""
    trained, passed = export.task(role, trains=True), export.task(role, trains=False)
    layout = export.layout(role)
    export.put_fixed(role)
    key = STRATEGY.replace(ROLE, export.sheet.roles[role])
    first = export.plan.job.trainer("actor")
    is_first = first.adapters_apart or first.waiting_gradients == "bf16"
    # The policy of off-loading is of FSDP 2 alone.
    if is_first and not first.host_states and export.values.get(key) == "fsdp2":
        export.values[key] = "fsdp"
    export.put_cut(role)
    _padding(export, role, layout)
    export.put_size(role, "shard_ranks", layout.shard_ranks or -1)
    if trained is not None:
        export.put_size(role, "distributed", trained.zero > 0)
    export.put_size(role, "reshards", layout.zero == FULLY_SHARDED)
    leaving = states_leaving(export.plan.job, role)
    leaves = layout.offload and (trained is None or "weights" in leaving)
    export.put_size(role, "param_offload", leaves)
    _options(export, role, export.plan.job.trainer(role))
    if trained is not None:
        export.put_size(role, "optimizer_offload", layout.offload and "optimizer" in leaving)
        export.put_size(role, "max_gradient_norm", export.losses["max_gradient_norm"])
        _recomputation(export, role, trained)
        if trained.chunks > 1:
            export.put_size(role, "chunks", trained.chunks)
        _batches(partial(export.put_size, role), trained)
    if role == "critic":
        export.values["critic.model.path"] = export.model("critic")
        if passed is not None:
            _batches(partial(export.put_size, role), passed, "infer_")
    elif role == "reference" and passed is not None:
        _batches(partial(export.put_size, role), passed)
    elif role == "actor":
        _batches(export.put, passed or trained or layout, "infer_")


def _padding(export: Export, role: Role, layout: TaskPlan) -> None:
    """Write whether rows are packed, and whether a rank pads them to the longest of all that it has."""
    padding = load_engine(layout.engine).padding
    if role != "reference":
        export.put("packs" if role == "actor" else "critic_packs", padding == "none")
    if padding in {"micro_batch", "rank"}:
        export.put_size(role, "pads_rank", padding == "rank")


def _options(export: Export, role: Role, options: TrainerOptions) -> None:
    """Write how a role's trainer keeps its states and makes its logits, where that is unusual."""
    if options.weights is not None:
        export.put_size(role, "model_dtype", options.weights)
    if options.waiting_gradients is not None:
        export.put_size(role, "defers_reduction", True)
    if options.host_states or (
        role == "reference" and export.plan.job.trainer("actor").host_states
    ):
        export.put_size(role, "cpu_offload", options.host_states)
    if options.host_optimizer:
        export.put_size(role, "cpu_optimizer", True)
        export.put_size(role, "host_fraction", options.host_optimizer)
    if role == "actor":
        _logits(export, options)


def _logits(export: Export, options: TrainerOptions) -> None:
    """Write how the actor's log-probabilities and entropies are made, where that is unusual."""
    way = options.logits or ""
    if way == "fused":
        export.put("fuses_head", True)
    if way.startswith("entropy") and not export.losses["entropy_coefficient"]:
        export.put("entropy_counts", True)
    fsdp = export.trainer not in {"megatron", "mlite"}
    if way.endswith("eager") or (fsdp and way.endswith(("chunked", "checkpointed"))):
        export.put("compiles", False)  # a compiled entropy is fused, and never in pieces
    if way.endswith(("chunked", "checkpointed")):
        export.put("chunks_entropy", True)
        export.put("checkpoints_entropy", way.endswith("checkpointed"))
        if options.logit_chunk_tokens is not None:
            export.put("entropy_chunk", options.logit_chunk_tokens)


def _batches(put: Callable[[str, Scalar], None], layout: TaskPlan, prefix: str = "") -> None:
    """Write micro-batches, counted or by their tokens on a rank."""
    put(f"{prefix}dynamic", layout.token_budget is not None)
    if layout.token_budget is not None:
        put(f"{prefix}token_budget", layout.token_budget // layout.cp)
    else:
        put(f"{prefix}micro_batch", layout.micro_batch)


def _recomputation(export: Export, role: Role, layout: TaskPlan) -> None:
    kind = layout.recompute
    if export.trainer != "megatron":
        name = "critic_checkpoints" if role == "critic" else "checkpoints"
        export.put(name, kind != "none")
    elif kind != "none":
        export.put_recomputed(role, kind)
        if kind == "full":
            config = f"{export.sheet.roles[role]}.megatron.override_transformer_config"
            export.values[f"{config}.recompute_method"] = "uniform"
            export.values[f"{config}.recompute_num_layers"] = 1


def _scored(export: Export) -> None:
    """Write a reward model, which an engine serves."""
    pool, layout = export.pool("reward"), export.layout("reward")
    export.put("reward_on", True)
    export.values[f"{REWARD}.model_path"] = export.model("reward")
    export.values[f"{REWARD}.rollout.name"] = "vllm"
    export.put("reward_tp", layout.tp)
    if pool.name != export.plan.tasks[UPDATE].pool:
        nodes, gpus = export.nodes(pool)
        export.put("reward_pool", True)
        export.put("reward_nodes", nodes)
        export.put("reward_gpus_per_node", gpus)


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    export.values[f"{ROLLOUT}.name"] = export.engine_word(
        export.sheet.settings["rollout_engine"].values
    )
    export.put("eager", layout.engine.endswith("-eager"))
    export.put("rollout_tp", layout.tp)
    if layout.pp > 1:
        export.put("rollout_pp", layout.pp)
    if layout.ep > 1:
        export.put("rollout_dp", max(1, layout.ep // layout.tp))
        export.put("rollout_ep", layout.ep)
    export.put("memory_fraction", layout.memory_fraction)
    if not job.engines.sleeps:
        export.put("frees_cache", False)
    export.put("max_running", layout.max_running)
    _low_precision(export)
    if export.plan.bucket_bytes is not None:
        export.put("bucket_mebibytes", max(1, export.plan.bucket_bytes // MIB))
    adapter = job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)
        export.put("lora_merges", adapter.sync == "merged")
        if adapter.sync == "adapter" and not adapter.whole_first:
            export.put("load_format", "safetensors")


def _low_precision(export: Export) -> None:
    """Write number formats below 16 bits: of training, of the engine's weights and of its cache."""
    job = export.plan.job
    if job.precision in {"fp8", "mxfp8"} and export.trainer == "megatron":
        export.put("fp8", "hybrid")
        export.values[export.sheet.settings["fp8_recipe"].keys[0]] = FP8_RECIPES[job.precision]
    own = published_four_bits(
        "", job.architecture("actor").name
    )  # which engines read of the checkpoint
    if job.rollout_precision not in (None, own):
        export.put("rollout_quantised", job.rollout_precision)
    if job.kv_cache is not None:
        export.put("kv_cache", job.kv_cache)


def _losses(export: Export) -> None:
    export.put_losses()
    if export.losses["clip_ratio_dual"] is None:
        export.values["actor_rollout_ref.actor.clip_ratio_c"] = NO_DUAL_CLIP
    export.put_rates()
    place, weight = export.penalty
    export.put("kl_loss", place == "loss")
    export.put("kl_reward", place == "reward")
    if place != "none":
        export.put(f"kl_{place}_weight", weight)
    if export.plan.job.old_log_prob == "engine":
        export.put("bypass", True)
        export.put("calculates_log_probs", True)
    elif export.apart:
        export.put("bypass", False)  # which asynchronous trainers' own files turn on


def _sampling(export: Export) -> None:
    resampling = export.plan.job.dynamic_sampling
    if export.resamples:
        export.put("filters", True)
        rounds = resampling.max_rounds if resampling is not None else 10
        export.put("filter_rounds", rounds if rounds < NO_LIMIT else 0)
        export.values["algorithm.filter_groups.metric"] = "acc"
