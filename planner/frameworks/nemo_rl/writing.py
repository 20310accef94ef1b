"""NeMo-RL: a YAML file with the keys that a plan decides, over those of the examples' own."""

from typing import Final

from rlplan.files.writing import to_yaml
from rlplan.job import Job, Role
from rlplan.plan import TaskPlan
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import with_adapter_sent
from rlplan.planner.configs.writing.export import UPDATE, Export, Variable, spread_out
from rlplan.planner.frameworks.nemo_rl.reading import ENGINE_SHEETS
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.trainers import TrainerOptions
from rlplan.units import GIB

FUSED_ADAM: Final = "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam"
PPO_KEYS: Final = {"grpo.async_grpo.": "ppo.async_ppo.", "grpo.": "ppo."}


def write(export: Export) -> str:
    """Write a plan's values, and return the script that takes them."""
    export.check_roles(("actor", "critic", "reference"))
    for role in export.roles:
        export.check_home(role)
    _pools(export)
    _work(export)
    export.put_positions()
    export.values["policy.model_name"] = export.model("actor")
    for role in export.roles:
        if role == "critic":
            export.values["value.model_name"] = export.model("critic")
        if role != "reference":
            _role(export, role)
    _generation(export)
    _losses(export)
    if export.plan.job.algorithm == "ppo":
        export.values = {_of_ppo(key): value for key, value in export.values.items()}
        return "examples/run_ppo.py"
    return "examples/run_grpo.py"


def as_run(job: Job, _sheet: ConfigSheet, _trainer: str, _way: Arrangement) -> Job:
    """Return a job as it is run whatever it says: an engine gets weights with the adapter merged into them."""
    return with_adapter_sent(job, "merged")


def text_of(export: Export, start: str, defaults: str | None = None) -> str:
    """Return the file; a model that no sheet names stands as what it is."""
    plan, sheet = export.plan, export.sheet
    values = (
        (key, each.in_file if isinstance(each, Variable) else each)
        for key, each in export.values.items()
    )
    head = [
        f"# {plan.job.name}: {plan.placement}, mode {plan.mode}; for {sheet.title}, {sheet.version}",
        f"# uv run {start} --config FILE; what is not here is as in the file of `defaults`",
    ]
    base = {} if defaults is None else {"defaults": defaults}
    return "\n".join(head) + "\n" + to_yaml({**base, **spread_out(values)})


def _of_ppo(key: str) -> str:
    for start, other in PPO_KEYS.items():
        if key.startswith(start):
            return other + key.removeprefix(start)
    return key


def _pools(export: Export) -> None:
    """Write the cluster's nodes, those that only generate among them, and the mode."""
    plan, pool = export.plan, export.plan.pool(export.plan.tasks[UPDATE].pool)
    nodes, gpus = export.nodes(pool)
    group = next(group for group in plan.job.cluster if group.gpu == pool.device)
    if group.gpus_per_node < group.linked_gpus < group.gpus:
        export.put("nodes_together", group.linked_gpus // group.gpus_per_node)
    export.put("colocated", not export.apart)
    if not export.apart:
        export.put("nodes", nodes)
        export.put("gpus_per_node", gpus)
        return
    other = plan.pool(export.generate.pool)
    own_nodes, own_gpus = export.nodes(other)
    most = max(group.gpus_per_node for group in plan.job.cluster if group.gpu == pool.device)
    if pool.gpus + other.gpus <= most:
        nodes, gpus = 1, pool.gpus + other.gpus
        export.put("rollout_gpus_per_node", own_gpus)
    elif gpus == own_gpus:
        nodes += own_nodes
        export.put("rollout_nodes", own_nodes)
        export.put("rollout_gpus_per_node", own_gpus)
    else:
        problem = f"takes GPUs of a node of which pool {pool.name} has others"
        allowed = "whole nodes, or both pools in one node"
        raise export.refused(f"pools.{other.name}.gpus", problem, allowed, other.gpus)
    export.put("nodes", nodes)
    export.put("gpus_per_node", gpus)
    if plan.flow.overlaps:
        _mode(export)


def _mode(export: Export) -> None:
    plan = export.plan
    age = export.whole_age("counts ages in whole steps, and syncs weights after each")
    export.put("async", True)
    export.put("age", age)
    flows = plan.flow.is_endless and plan.in_flight != "drain"
    export.put("in_flight", flows)
    export.put("recomputes_cache", flows and plan.in_flight == "recompute")
    export.values["policy.generation.vllm_cfg.async_engine"] = True
    export.values["loss_fn.use_importance_sampling_correction"] = True


def _work(export: Export) -> None:
    work, algorithm = export.plan.job.workload, export.plan.job.algorithm
    export.put("prompts", work.prompts)
    export.put("samples", work.samples_per_prompt)
    export.put("update_sequences", export.update_size(work.sequences, "sample"))
    if work.epochs > 1 or algorithm == "ppo":
        export.put("epochs", work.epochs)
    export.put("max_total", work.longest_sequence_tokens)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response)
    export.put_algorithm()
    if export.turns > 1:
        export.put("turns", export.turns)
        export.notes.append(
            "what plays the environments stands under env and data in the defaults' file"
        )
    if export.resamples:
        resampling = export.plan.job.dynamic_sampling
        export.put("filters", True)
        if resampling is not None:
            export.put("filter_rounds", resampling.max_rounds)


def _role(export: Export, role: Role) -> None:
    trained, passed = export.task(role, trains=True), export.task(role, trains=False)
    assert trained is not None, f"the {role} is trained"
    export.put_fixed(role)
    export.put_cut(role)
    export.put_size(role, "distributed", trained.zero > 0)
    if export.plan.job.trainer(role).gradients is not None:
        export.put_size(role, "reduces_in_fp32", False)
    export.put_size(role, "precision_aware", not export.plan.job.trainer(role).masters_stay)
    export.put_size(role, "checkpoints", trained.recompute != "none")
    if trained.recompute != "none" and role == "actor":
        export.put_recomputed(role, trained.recompute)
    options = export.plan.job.trainer(role)
    if export.apart:
        export.put_size(role, "cpu_offload", trained.offload or options.host_states)
        export.put_size(role, "cpu_optimizer", trained.offload)
    elif options.host_states:
        export.put_size(role, "cpu_offload", True)
    if options.optimizer.startswith(("masters", "remainders")):
        _masters(export, role, options)
    if options.host_optimizer:
        export.put_size(role, "cpu_optimizer", True)
        export.put_size(role, "host_fraction", options.host_optimizer)
    if role == "actor" and export.trainer == "megatron":
        _logits(export, options)
    reference = export.task("reference", trains=False)
    _batches(export, role, trained, passed or reference or trained)
    name = "critic_learning_rate" if role == "critic" else "learning_rate"
    export.put_size(role, "learning_rate", export.losses[name])
    decay = export.losses["weight_decay"]
    if role == "actor" and decay is not None:
        export.put_size(role, "weight_decay", decay)


def _masters(export: Export, role: Role, options: TrainerOptions) -> None:
    """Write that Transformer Engine's FusedAdam keeps a master copy, and in which formats."""
    kind, _, narrow = options.optimizer.partition("-")
    moments = "torch.bfloat16" if narrow else "torch.float32"
    export.values[f"{export.sheet.roles[role]}.optimizer.name"] = FUSED_ADAM
    export.put_size(role, "master_weights", True)
    export.put_size(role, "remainders", kind == "remainders")
    for name in ("first_moments", "second_moments"):
        export.put_size(role, name, moments)


def _logits(export: Export, options: TrainerOptions) -> None:
    """Write how Megatron's workers make log-probabilities, where that is unusual."""
    way = options.logits or ""
    if way == "fused-linear":
        export.put("fuses_head", True)
        export.put("fused_chunk", options.logit_chunk_tokens)
        return
    if way.startswith("deferred"):
        export.put("defers_logits", True)
    if way.endswith("chunked"):
        export.put("logprob_chunk", options.logit_chunk_tokens)


def _batches(export: Export, role: Role, trained: TaskPlan, passed: TaskPlan) -> None:
    """Write micro-batches: sequences packed up to a number of tokens, or counted."""
    packs = trained.token_budget is not None
    export.put_size(role, "packs", packs)
    export.put_size(role, "dynamic", False)
    if trained.token_budget is not None:
        export.put_size(role, "packed_tokens", trained.token_budget)
        export.put_size(role, "infer_packed_tokens", passed.token_budget or trained.token_budget)
    export.put_size(role, "micro_batch", trained.micro_batch)
    if role == "actor":
        export.put_size(role, "infer_micro_batch", passed.micro_batch)


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    backend = export.engine_word(ENGINE_SHEETS)
    export.put("backend", backend)
    if export.plan.bucket_bytes is not None and (not export.apart or backend == "sglang"):
        export.put("refit_buffer_gib", export.plan.bucket_bytes / GIB)
    for name in ("tp", "pp", "ep"):
        export.put(f"{backend}_{name}", getattr(layout, name))
    export.put(f"{backend}_memory", layout.memory_fraction)
    export.put(f"{backend}_eager", layout.engine.endswith("-eager"))
    export.put(f"{backend}_running", layout.max_running)
    if backend == "vllm":
        export.values["policy.generation.vllm_cfg.max_model_len"] = (
            job.workload.longest_sequence_tokens
        )
        if job.rollout_precision is not None:
            export.put("vllm_precision", job.rollout_precision)
        if job.kv_cache is not None:
            export.put("kv_cache", job.kv_cache)
    _formats(export)


def _formats(export: Export) -> None:
    """Write number formats and adapters."""
    job = export.plan.job
    precision = job.precision or "bf16"
    if precision in {"fp8", "mxfp8"}:
        export.put("precision", "bf16")
        export.put("fp8", True)
        export.put("fp8_recipe", precision)
    else:
        export.put("precision", precision)
    adapter = job.adapter("actor")
    if adapter is not None:
        name = "peft" if export.trainer == "megatron" else "lora"
        export.put(name, True)
        export.put(f"{name}_rank", adapter.rank)
        export.put(f"{name}_alpha", adapter.alpha or adapter.rank)


def _losses(export: Export) -> None:
    export.put_losses()
    export.put("temperature", export.losses["temperature"])
    place, weight = export.penalty
    export.put("kl_weight", weight)
    export.put("kl_in_reward", place == "reward")
    if place == "none":
        export.put("skips_reference", True)
    on_policy = export.plan.job.old_log_prob == "engine"
    if on_policy and export.plan.job.workload.updates > 1:
        problem = "takes the engine's log-probabilities for several updates of a step"
        raise export.refused("job.old_log_prob", problem, "trainer, or one update", "engine")
    export.put("on_policy", on_policy)
