"""AReaL: a YAML file with every section that its configuration wants, sizes as allocation strings."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from rlplan.algorithms import load_algorithm
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import to_yaml
from rlplan.job import Job, Role
from rlplan.plan import TaskPlan
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.reading.versions import lacks_key
from rlplan.planner.configs.run import unusual, with_adapter_sent, with_own_reference
from rlplan.planner.configs.writing.export import UPDATE, Export, Variable, spread_out
from rlplan.planner.frameworks.areal.allocation import ARCHON, FSDP
from rlplan.planner.frameworks.areal.reading import COLOCATION, DISK, OPTIMIZERS, PPO, SGLANG
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.trainers import TrainerOptions

START: Final = "examples/math/gsm8k_rl.py"
MODELS: Final[tuple[Role, ...]] = ("actor", "critic", "reference")
# Of one sample a prompt advantages are of the whole batch (REINFORCE++), as with a critic.
ALONE: Final = "reinforce-plus-plus"
ALGORITHMS: Final = {"grpo": "token", "gspo": "sequence", PPO: "token", ALONE: "token"}
DISK_NOTE: Final = (
    "weights reach engines on the trainer's GPUs over a disk, whose seconds no forecast counts"
)
# An engine computes in bf16 whatever its trainer keeps: attention kernels take no fp32 (areal/api/cli_args.py, dtype).
ENGINE_FORMAT: Final = "bfloat16"
PROMPTS: Final = Variable(name="TRAIN_DATA", default=None, meaning="a data set with prompts")
VALIDATION: Final = Variable(name="VALID_DATA", default=None, meaning="a data set for validation")
FILES: Final = Variable(
    name="FILES", default="experiments", meaning="a folder that all nodes share"
)
# Whoever trains says so to each section, and all write below one folder.
NAMES: Final = {"experiment_name": "${experiment_name}", "trial_name": "${trial_name}"}
STORED: Final = {**NAMES, "fileroot": "${cluster.fileroot}"}
RARELY: Final = {**STORED, "freq_epochs": 1, "freq_steps": None, "freq_secs": None}
WORKER: Final = {"task_type": "worker", "port_count": 2, "gpu": 1, "cmd": "python3 -m areal.infra.rpc.rpc_server"}  # fmt: skip
# The first version whose allocations name what trains, as `sglang:d4t1+fsdp:d4` (0.3.3, areal/api/alloc_mode.py).
JOINED_SINCE: Final = "0.3"
WHOLE: Final = {"mean_level": "batch", "std_level": "batch"}


def write(export: Export) -> str:
    """Write a plan's values, and return the script that takes them."""
    export.check_roles(MODELS)
    _check_work(export)
    export.values["cluster.fileroot"] = FILES
    for role in export.roles:
        if role != "reference" or export.plan.job.models[role] != export.plan.job.models["actor"]:
            export.values[f"{export.sheet.roles[role]}.path"] = export.model(role)
        else:
            export.values["ref.path"] = "${actor.path}"
    _mode(export)
    _cluster(export)
    for role in export.roles:
        _role(export, role)
    _generation(export)
    _work(export)
    _losses(export)
    return START


def text_of(export: Export, start: str) -> str:
    """Return the file; a variable stands as its default, or as what it is."""
    values = {
        key: each.in_file if isinstance(each, Variable) else each
        for key, each in export.values.items()
    }
    head = [
        export.headline,
        f"# python3 {start} --config FILE scheduler.type=local (ray, slurm)",
        *(f"# {note}" for note in export.notes),
    ]
    tree = spread_out([*_frame(export).items(), *values.items()])
    return "\n".join(head) + "\n" + to_yaml(tree)


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as it is run where it leaves that open: penalties in rewards, a reference beside adapters, which engines get as they are, Archon's weights in bf16.

    Archon loads and steps weights in one format, bf16 by default; FSDP and Megatron have copies in fp32.
    """
    del sheet, way
    losses = job.hyperparameters
    if losses.kl_in is None and load_algorithm(job.algorithm).uses_reference(losses):
        job = replace(job, hyperparameters=replace(losses, kl_in="reward"))
    job = with_own_reference(with_adapter_sent(job, "adapter"))
    if trainer != ARCHON:
        return job
    given = job.trainers or FrozenDict[Role, TrainerOptions]()
    own = {role: job.trainer(role) for role in job.models}
    kept = {role: replace(each, weights=each.weights or "bf16") for role, each in own.items()}
    return replace(job, trainers=unusual({**given, **kept}))


def of_version(
    values: Mapping[str, Any], sheet: ConfigSheet, given: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return values with one allocation of all engines where a version has no back ends of their own, as from 0.3.3 to 1.0.2.

    Args:
        given: Keys that a file of it gives: engines with sizes of their own count before an allocation of all.
    """
    engines = ("rollout.backend", "actor.backend")
    is_joined = lacks_key(sheet, engines[1], None) and not set(engines) <= set(given)
    if not is_joined or sheet.versions.index(sheet.version) < sheet.versions.index(JOINED_SINCE):
        return values
    apart = values.get("rollout.scheduling_strategy.type") != COLOCATION
    kept = {
        key: value
        for key, value in values.items()
        if not key.endswith(".backend") and ".scheduling_strategy." not in key
    }
    return {
        **kept,
        "allocation_mode": ("+" if apart else "|").join(values[each] for each in engines),
    }


def _frame(export: Export) -> dict[str, Any]:
    """Return what no plan decides, and no section goes without: names, folders, formats of engines, workers."""
    frame: dict[str, Any] = {
        "experiment_name": export.plan.job.name.replace("_", "-").replace("/", "-"),
        "trial_name": "trial0",
        "seed": export.plan.job.seed,
        "total_train_epochs": 10,
        "tokenizer_path": "${actor.path}",
        "actor.scheduling_spec": (WORKER,),
        "rollout.scheduling_spec": "${actor.scheduling_spec}",
        "rollout.tokenizer_path": "${tokenizer_path}",
        "rollout.consumer_batch_size": "${train_dataset.batch_size}",
        "train_dataset.path": PROMPTS.meaning,
        "train_dataset.type": "rl",
        "valid_dataset.path": VALIDATION.meaning,
        "valid_dataset.type": "rl",
        "valid_dataset.batch_size": "${train_dataset.batch_size}",
        "saver": RARELY,
        "recover": {**RARELY, "mode": "disabled"},
        "evaluator": RARELY,
        "stats_logger": STORED,
    }
    sections = [export.sheet.roles[role] for role in export.roles]
    for section in (*sections, "rollout"):
        frame |= {f"{section}.{key}": value for key, value in NAMES.items()}
        if section not in {"actor", "rollout"}:
            frame[f"{section}.scheduling_spec"] = "${actor.scheduling_spec}"
    return frame


def _check_work(export: Export) -> None:
    """Refuse algorithms, episodes and samplings that no key tells."""
    job = export.plan.job
    if job.algorithm not in ALGORITHMS:
        allowed = ", ".join(ALGORITHMS)
        raise export.refused("job.algorithm", "learns by another algorithm", allowed, job.algorithm)
    if export.turns > 1:
        where, problem = "job.workload.environments", "plays turns that a workflow's program knows"
        raise export.refused(where, problem, "one turn a response", export.turns)
    if export.resamples:
        problem = "samples groups of equal rewards again"
        raise export.refused("job.dynamic_sampling", problem, "all groups are learnt from")


def _mode(export: Export) -> None:
    """Write how old samples may be, and whose log-probabilities are the old ones."""
    plan = export.plan
    age = 0
    if plan.flow.overlaps:
        if not (plan.flow.is_endless and export.apart):
            problem = "overlaps iterations without being asynchronous on GPUs apart"
            raise export.refused("mode", problem, "sync, or async with generation apart", plan.mode)
        if plan.in_flight != "recompute":
            problem = "keeps the cache of responses under way, or waits for them"
            raise export.refused("in_flight", problem, "recompute", plan.in_flight)
        age = export.whole_age("counts versions of the weights, and syncs them after each step")
        export.put("concurrent", plan.job.workload.prompts * (age + 1))
    export.put("off_policyness", age)
    passes = plan.job.old_log_prob == "trainer"
    export.put("decoupled", passes and plan.flow.is_endless)
    export.put("recomputes", passes)


def _cluster(export: Export) -> None:
    """Write the nodes, which all pools share."""
    used = dict.fromkeys(export.plan.tasks[task.name].pool for task in export.tasks)
    gpus = sum(export.plan.pool(name).gpus for name in used)
    per_node = export.node_gpus(export.pool("actor"))
    export.values["cluster.n_nodes"] = -(-gpus // per_node)
    export.put("gpus_per_node", per_node)


def _role(export: Export, role: Role) -> None:
    """Write one role's engine: its sizes, where it runs and how it trains."""
    layout, trained = export.layout(role), export.task(role, trains=True)
    section, options = export.sheet.roles[role], export.plan.job.trainer(role)
    export.put(f"{role}_backend", f"{export.trainer}:{_sizes(export, layout)}")
    if role != "actor":
        _place(export, role)
    export.put_size(role, "leaves", layout.offload and (export.apart or role == "reference"))
    export.put_size(role, "cpu_offload", options.host_states)
    if export.trainer == FSDP:
        export.put_size(role, "stored", options.weights)
    if export.trainer == ARCHON:
        export.put_size(role, "dtype", options.weights)
    _batches(export, role, trained or layout)
    if trained is None:
        export.values[f"{section}.optimizer"] = None
        return
    words = (word for word, meant in OPTIMIZERS.items() if meant == options.optimizer)
    export.put_size(role, "optimizer", str(next(words)))
    export.put_size(role, "max_gradient_norm", export.losses["max_gradient_norm"])
    export.put_size(role, "checkpoints", trained.recompute != "none")
    if trained.recompute != "none":
        export.put_recomputed(role, trained.recompute)
    if trained.chunks > 1:
        export.put_size(role, "chunks", trained.chunks)


def _sizes(export: Export, layout: TaskPlan) -> str:
    """Return a layout's sizes, those of experts beside where these are shared out."""
    pp = f"p{layout.pp}" if export.trainer != "fsdp" else ""
    whole = f"d{layout.dp}{pp}t{layout.tp}c{layout.cp}"
    if layout.ep == 1:
        return whole
    width = layout.expert_tp or layout.tp
    ranks, left = divmod(export.plan.pool(layout.pool).gpus, layout.pp * width * layout.ep)
    if left or not ranks:
        where, problem = f"tasks.{UPDATE}.ep", f"x {width} x {layout.pp} do not divide the GPUs"
        raise export.refused(where, problem, "sizes that divide them", layout.ep)
    return f"(attn:{whole}|ffn:d{ranks}{pp}t{width}e{layout.ep})"


def _place(export: Export, role: Role) -> None:
    """Write whether a role shares the actor's GPUs, or has some of its own."""
    home, own = export.plan.tasks[UPDATE].pool, export.pool(role).name
    if own == home:
        export.put(f"{role}_place", COLOCATION)
        export.values[f"{export.sheet.roles[role]}.scheduling_strategy.target"] = "actor"
        return
    others = [each for each in export.roles if each != role and export.pool(each).name == own]
    if others or own == export.generate.pool:
        problem = f"holds the {role} and {others[0] if others else 'engines'}, and not the actor"
        allowed = f"the {role} beside the actor, or alone"
        raise export.refused(f"pools.{own}.roles", problem, allowed)
    export.put(f"{role}_place", "separation")


def _batches(export: Export, role: Role, layout: TaskPlan) -> None:
    """Write a budget of tokens, or into how many micro-batches a rank cuts what it gets."""
    export.put_size(role, "token_budget", layout.token_budget)
    options = export.plan.job.trainer(role)
    if options.fills_budgets:
        export.put_size(role, "padded", value=True)
    if options.shares_prompts:
        export.put_size(role, "shares_prompts", value=True)
    if layout.token_budget is not None:
        return
    work = export.plan.job.workload
    updates = work.updates if export.task(role, trains=True) is not None else 1
    export.put_size(
        role, "micro_batches", max(1, work.sequences // (layout.dp * updates * layout.micro_batch))
    )


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    word = export.engine_word(export.sheet.settings["rollout_engine"].values)
    export.put("rollout_backend", f"{word}:d{layout.dp}p{layout.pp}t{layout.tp}")
    if layout.ep > 1 and (word != SGLANG or layout.ep != layout.tp):
        problem = "spreads experts over other ranks than those of SGLang's tensor parallelism"
        raise export.refused("tasks.actor.generate.ep", problem, "1, or sglang's TP", layout.ep)
    if not export.apart:
        export.put("rollout_place", COLOCATION)
        export.values["rollout.scheduling_strategy.target"] = "actor"
        export.put("update_mode", DISK)
        export.notes.append(DISK_NOTE)
    leaves = not export.apart or any(export.layout(role).offload for role in export.roles)
    export.values["enable_offload"] = leaves
    export.put(f"{word}_memory", layout.memory_fraction)
    export.put(f"{word}_running", layout.max_running)
    export.put(f"{word}_context", job.workload.longest_sequence_tokens)
    export.put(f"{word}_eager", layout.engine.endswith("-eager"))
    export.values[f"{word}.dtype"] = ENGINE_FORMAT
    if word == SGLANG:
        export.values["sglang.model_path"] = "${actor.path}"
        export.put("sglang_ep", layout.ep)
        if job.kv_cache is not None:
            export.put("sglang_cache", job.kv_cache)
    else:
        export.values["vllm.model"] = "${actor.path}"
    adapter = job.adapter("actor")
    if adapter is not None:
        export.put("lora", True)
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", round(adapter.alpha or adapter.rank))


def _work(export: Export) -> None:
    work = export.plan.job.workload
    export.put("prompts", work.prompts)
    export.put("samples", work.samples_per_prompt)
    export.update_size(work.sequences, "sample")
    export.put("minibatches", work.updates)
    if "critic" in export.roles:
        export.put("critic_minibatches", work.updates)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response)
    export.put("max_tokens", work.longest_sequence_tokens)


def _losses(export: Export) -> None:
    export.put_losses()
    if export.losses["clip_ratio_high"] == export.losses["clip_ratio"]:
        del export.values[export.sheet.losses["clip_ratio_high"].keys[0]]
    export.put_rates()
    export.values["actor.temperature"] = "${gconfig.temperature}"
    export.put("policy_level", ALGORITHMS[export.plan.job.algorithm])
    if export.plan.job.algorithm in {PPO, ALONE}:
        export.values |= {f"actor.adv_norm.{key}": value for key, value in WHOLE.items()}
    else:
        norm = {"mean_level": "group", "std_level": "group", "group_size": "${gconfig.n_samples}"}
        export.values |= {f"actor.reward_norm.{key}": value for key, value in norm.items()}
    place, weight = export.penalty
    if place == "loss":
        where, problem = "job.hyperparameters.kl_in", "puts the penalty into the loss"
        raise export.refused(where, problem, "reward, none", place)
    export.put("kl_weight", weight)
