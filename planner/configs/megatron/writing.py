"""Write a plan as a launch script of Megatron's flags and a rollout's, one a line."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from rlplan.dataflow import rounds_of
from rlplan.models import ModelArchitecture, layer_kinds
from rlplan.plan import TaskPlan
from rlplan.planner.configs.megatron.model import DENSE_FAMILY, EXPERT_FAMILY, LATENT_FAMILY
from rlplan.planner.configs.megatron.reading import ENGINE, MEGATRON
from rlplan.planner.configs.writing.export import (
    UPDATE,
    Export,
    Variable,
    as_flag,
    launch_script,
    states_leaving,
)
from rlplan.profiles.catalog import resolve_job

SYNC, AHEAD = "python3 train.py", "python3 train_async.py"
DAPO, GRPO, GSPO = "dapo", "grpo", "gspo"
# Families whose layers Megatron's flags describe; others have a specification in a file of the framework's own.
WRITTEN: Final = frozenset(
    {DENSE_FAMILY, EXPERT_FAMILY, LATENT_FAMILY, "qwen2", "llama", "kimi_k2", "deepseek_v2"}
)
PROMPTS: Final = Variable(name="TRAIN_FILES", default=None, meaning="a data set with prompts")
REFERENCE: Final = Variable(
    name="REFERENCE", default=None, meaning="a checkpoint of the reference, converted for Megatron"
)
REWARDS: Final = Variable(
    name="REWARDS", default="math", meaning="the kind of rewards: math, deepscaler, f1, ..."
)
GENERATE: Final = Variable(
    name="GENERATE", default=None, meaning="path.to.function that plays the environments"
)


def write_flags(export: Export, *, filter_path: str) -> str:
    """Write a plan's values, and return the command that starts them.

    Args:
        filter_path: The framework's function that drops groups of equal rewards.
    """
    export.check_roles(("actor", "critic", "reference"))
    for role in export.roles:
        export.check_home(role)
    _pools(export)
    export.values["hf-checkpoint"] = export.model("actor")
    if export.penalty[0] != "none":
        export.values["ref-load"] = REFERENCE
    if _is_megatron(export):  # FSDP's parser refuses flags that it does not know
        model = export.plan.job.architecture("actor")
        if model.family in WRITTEN and model.linear is None:
            _model(export, model)
        else:
            meaning = f"the file of {export.sheet.title} with the flags of {model.name}, under scripts/models"
            export.model_file = Variable(name="MODEL_FILE", default=None, meaning=meaning)
    export.values["prompt-data"] = PROMPTS
    export.values["rm-type"] = REWARDS
    if export.turns > 1:
        export.values["custom-generate-function-path"] = GENERATE
    _work(export, filter_path)
    _trainer(export)
    _generation(export)
    _losses(export)
    flow = export.plan.flow
    return AHEAD if flow.is_batch_ahead or flow.is_endless else SYNC


def text_of_flags(export: Export, start: str) -> str:
    """Return the script; switches that are off are left out."""
    off = (False, None)
    export.values = {
        key: value for key, value in export.values.items() if not any(value is each for each in off)
    }
    return launch_script(export, start, as_flag)


def _pools(export: Export) -> None:
    plan = export.plan
    nodes, gpus = export.nodes(plan.pool(plan.tasks[UPDATE].pool))
    export.put("actor_nodes", nodes)
    export.put("actor_gpus_per_node", gpus)
    export.put("gpus_per_node", export.node_gpus(plan.pool(export.generate.pool)))
    export.put("colocate", not export.apart)
    # Beside --colocate too: from June 2026 on slime starts engines on no more GPUs than a script says here.
    export.put("rollout_gpus", plan.pool(export.generate.pool).gpus)
    if plan.flow.overlaps:
        export.whole_age("syncs weights after each step's updates")


def _model(export: Export, model: ModelArchitecture) -> None:
    """Write the model's sizes, as a script of `scripts/models/` has them."""
    for name, value in _sizes_of(model).items():
        export.put(name, value)
    export.values["normalization"] = "RMSNorm"
    export.values["position-embedding-type"] = "rope"


def _sizes_of(model: ModelArchitecture) -> dict[str, bool | int | float | str | None]:
    found: dict[str, bool | int | float | str | None] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_size": model.ffn_size,
        "num_heads": model.num_heads,
        "vocab_size": model.vocab_size,
        "rope_theta": round(model.rope_theta),
        "norm_epsilon": model.norm_epsilon,
        "untied": not model.tied_embeddings,
        "qkv_bias": model.qkv_bias,
        "without_biases": True,
        "qk_norm": model.qk_norm or model.latent is not None,
        "gated": model.gated_mlp,
    }
    latent = model.latent
    if latent is None:
        found |= {"grouped": True, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    else:
        found |= {
            "latent": True,
            "query_rank": latent.query_rank,
            "kv_rank": latent.kv_rank,
            "nope_dim": latent.nope_dim,
            "rope_dim": latent.rope_dim,
            "value_dim": latent.value_dim,
        }
    return found | (_experts_of(model) if model.num_experts else {})


def _experts_of(model: ModelArchitecture) -> dict[str, bool | int | float | str | None]:
    kinds, details = layer_kinds(model), model.expert_details
    has_experts = [kinds.models[place].feed_forward_part == "experts" for place in kinds.order]
    found: dict[str, bool | int | float | str | None] = {
        "num_experts": model.num_experts,
        "experts_per_token": model.experts_per_token,
        "moe_ffn_size": model.moe_ffn_size,
    }
    if details is not None:
        found |= {
            "shared_ffn_size": details.shared_ffn_size or None,
            "shared_gate": details.shared_gate,
            "router_bias": details.router_bias,
        }
    if not all(has_experts):
        found["expert_layers"] = f"[{','.join(str(int(each)) for each in has_experts)}]"
    return found


def _work(export: Export, filter_path: str) -> None:
    work, algorithm = export.plan.job.workload, export.plan.job.algorithm
    export.values["num-rollout"] = 1000
    export.put("prompts", work.prompts)
    export.put("samples", work.samples_per_prompt)
    export.put("update_sequences", export.update_size(work.sequences, "sample"))
    if work.epochs > 1:
        problem = "passes over a batch several times"
        raise export.refused("job.workload.epochs", problem, "1", work.epochs)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response)
    if work.max_total_tokens is not None:
        export.put("max_total", work.max_total_tokens)
    sampling = export.plan.job.dynamic_sampling
    if export.resamples:
        export.values["dynamic-sampling-filter-path"] = filter_path
    if work.over_provisioning > 1 or export.resamples:
        waited = work.prompts * (rounds_of(sampling) if sampling and export.resamples else 1.0)
        export.put("begun_prompts", round(waited * work.over_provisioning))
    if algorithm == DAPO:
        export.put("estimator", GRPO)
    else:
        export.put_algorithm()
    if algorithm.startswith("reinforce-plus-plus"):
        export.values["normalize-advantages"] = True


def _trainer(export: Export) -> None:
    """Write the sizes, which are the same for all roles and passes."""
    export.put_cut("actor")
    trained, job = export.plan.tasks[UPDATE], export.plan.job
    if trained.ep == 1 and trained.expert_tp is not None:
        export.put_size("actor", "expert_tp", trained.expert_tp)
    megatron = _is_megatron(export)
    if megatron and trained.tp > 1:
        export.values["sequence-parallel"] = True
    export.put("backend", "megatron" if megatron else "fsdp")
    _recompute(export, trained)
    budget = trained.token_budget
    export.put_size("actor", "dynamic", budget is not None)
    if budget is not None:
        export.put_size("actor", "token_budget", budget // trained.cp)
    else:  # Megatron asks for whole ones where they are packed too, and then 1 is
        export.put_size("actor", "micro_batch", trained.micro_batch)
    options = job.trainer("actor")
    export.put_size("actor", "cpu_optimizer", options.host_optimizer > 0)
    if options.host_optimizer > 0:
        export.put_size("actor", "host_fraction", options.host_optimizer)
    if megatron and not options.host_copy:
        export.put_size("actor", "without_host_copy", True)
    critic = "critic" in export.roles
    leaves = trainer_leaves(export)
    export.put("keeps_train", not leaves and (not export.apart or critic))
    export.put("offload_train", leaves and export.apart and not critic)
    export.put("keeps_rollout", not export.apart and not job.engines.sleeps)
    precision = job.precision or "bf16"
    if precision in {"fp8", "mxfp8"}:
        export.put("fp8", "e4m3")
        export.put("fp8_recipe", precision)
    else:
        export.put("fp16", precision == "fp16")
    if megatron:
        export.values["attention-dropout"] = export.values["hidden-dropout"] = 0.0


def trainer_leaves(export: Export) -> bool:
    """Tell whether the trainer's states leave the GPUs between uses: those that are stepped on the host are there anyway."""
    job = export.plan.job
    leaving = states_leaving(job, "actor")
    stays = job.trainer("actor").host_optimizer > 0 and leaving == ("optimizer",)
    return export.plan.tasks[UPDATE].offload and bool(leaving) and not stays


def _is_megatron(export: Export) -> bool:
    return export.trainer == MEGATRON


def _recompute(export: Export, trained: TaskPlan) -> None:
    if "checkpoints" in export.sheet.trainers[export.trainer].sizes:
        export.put_size("actor", "checkpoints", trained.recompute != "none")
    elif trained.recompute != "none":
        export.put_recomputed("actor", trained.recompute)
        if trained.recompute == "full":
            export.put_size("actor", "recompute_method", "uniform")
            export.put_size("actor", "recompute_num_layers", 1)


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    export.engine_word({"sglang": ENGINE})
    groups = _groups(layout)
    export.put("rollout_tp", engine_gpus(layout))
    export.put("engine_pp", layout.pp)
    export.put("engine_ep", layout.ep)
    export.put("engine_dp", groups)
    export.put("dp_attention", groups > 1)
    export.put("rollout_memory", layout.memory_fraction)
    export.put("rollout_running", engine_running(layout))
    export.put("concurrency", engine_running(layout))
    if job.engines.graph_sequences is not None:
        captures = job.engines.graph_sequences > 0
        export.put("graph_most", job.engines.graph_sequences if captures else None)
        export.put("without_graphs", not captures)
    if job.kv_cache == "fp8":
        export.put("kv_cache", "fp8")
    if export.plan.bucket_bytes is not None:
        export.put("bucket_bytes", export.plan.bucket_bytes)


def engine_gpus(layout: TaskPlan) -> int:
    """Return the GPUs of an engine, whose experts may lie over several groups that share attention out by requests."""
    return layout.tp * layout.pp * _groups(layout)


def engine_running(layout: TaskPlan) -> int:
    """Return how many sequences an engine decodes at a time at most, in all groups that share its requests."""
    return layout.max_running * _groups(layout)


def _groups(layout: TaskPlan) -> int:
    return max(1, layout.ep // layout.tp)


def _losses(export: Export) -> None:
    export.put_losses()
    export.put("temperature", export.losses["temperature"])
    job, (place, weight) = export.plan.job, export.penalty
    export.put("kl_loss", place == "loss")
    export.put("kl_loss_weight", weight if place == "loss" else 0.0)
    export.put("kl_reward_weight", weight if place == "reward" else 0.0)
    export.put("rollout_log_probs", job.old_log_prob == "engine" and not _reuses(export))


def _reuses(export: Export) -> bool:
    """Tell whether the framework leaves the pass for old log-probabilities out by itself."""
    framework = export.sheet.trainers[export.trainer].framework
    job = replace(export.plan.job, framework=framework, old_log_prob=None)
    return resolve_job(job, Path(), file="the export").old_log_prob == "engine"
