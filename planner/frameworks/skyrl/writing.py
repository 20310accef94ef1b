"""SkyRL: a launch script with one override a line, over the defaults of its dataclasses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling, Job, Role
from rlplan.plan import ENDLESS_MODE
from rlplan.planner.configs.losses import NO_LIMIT, words_of
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import unusual, with_own_reference
from rlplan.planner.configs.writing.export import (
    UPDATE,
    Export,
    Variable,
    launch_script,
    losses_of,
    states_leaving,
)
from rlplan.planner.frameworks.skyrl.reading import CISPO, DUAL, FSDP, MEGATRON, OF_SAMPLED
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.catalog import load_engine
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions
from rlplan.units import GIB

# How versions of skyrl_train are called here.
EARLIER: Final = "train-"
SYNC: Final = "uv run --isolated --extra {} -m skyrl.train.entrypoints.main_base"
ONE_STEP_OFF: Final = "uv run --isolated --extra {} -m examples.train.async.main_async"
FULLY_ASYNC: Final = "uv run --isolated --extra {} -m examples.train.fully_async.main_fully_async"
MODELS: Final[tuple[Role, ...]] = ("actor", "critic")
# Sums of tokens are divided by a length that the configuration names (utils.py, validate_cfg).
SUMS: Final = "token-sum-norm"
NORM: Final = "trainer.algorithm.max_seq_len"
DATA: Final = {
    "data.train_data": Variable(
        name="TRAIN_DATA", default=None, meaning="list of files with prompts, as ['train.parquet']"
    ),
    "data.val_data": Variable(
        name="VAL_DATA", default=None, meaning="list of files for validation, as ['test.parquet']"
    ),
    "environment.env_class": Variable(
        name="ENVIRONMENT", default="gsm8k", meaning="environment that gives the rewards"
    ),
}


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    export.check_roles(MODELS, ("reference",))
    export.put("strategy", export.trainer)
    start = _mode(export)
    _pools(export)
    _work(export)
    export.values["trainer.policy.model.path"] = export.model("actor")
    for role in export.roles:
        _role(export, role)
    _batches(export)
    _generation(export)
    _losses(export)
    return start.format(export.trainer)


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return launch_script(export, start, lambda key, value: f"{key}={value}")


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as one of its trainers runs it in an arrangement, whatever the job leaves open.

    Args:
        trainer: Its name in the sheet of keys.
    """
    job = with_own_reference(job)
    given = job.trainers or FrozenDict[Role, TrainerOptions]()
    own = {role: _as_kept(job, sheet, trainer, role) for role in job.models}
    job = replace(job, trainers=unusual({**given, **own}))
    in_reward = job.hyperparameters.kl_in == "reward"
    if ENDLESS_MODE in way.modes and not in_reward:
        return replace(job, old_log_prob="engine")
    return job


def start_of_version(start: str, sheet: ConfigSheet) -> str:
    """Return a command by the modules that skyrl_train, whose versions came first, has in their place."""
    if not sheet.version.startswith(EARLIER):
        return start
    return start.replace(" skyrl.train.", " skyrl_train.").replace(" examples.train.", " examples.")


def _as_kept(job: Job, sheet: ConfigSheet, trainer: str, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits, as `reading` finds it."""
    options = job.trainer(role)
    if trainer == FSDP and role == "reference":
        return replace(options, weights=options.weights or "bf16")
    chunk = sheet.settings["logprob_chunk"].default
    assert chunk is None or isinstance(chunk, int), (
        "a number of tokens; none in versions before 0.3"
    )
    way = None
    if trainer == MEGATRON and role != "critic":
        way = "vocab-parallel-chunked"
    elif role == "actor" and losses_of(job)["entropy_coefficient"]:
        way = "in-place-entropy"
    if way is None or options.logits is not None:
        return options
    return replace(options, logits=way, logit_chunk_tokens=options.logit_chunk_tokens or chunk)


def _mode(export: Export) -> str:
    """Write how iterations follow each other, and return what starts them."""
    plan = export.plan
    if not plan.flow.overlaps:
        return SYNC
    if not export.apart:
        problem = f"generates on pool {export.generate.pool}, where it trains"
        raise export.refused("mode", problem, "sync, or generation on its own", plan.mode)
    age = export.whole_age("counts whole updates, and syncs weights after each")
    if not plan.flow.is_endless:
        return ONE_STEP_OFF
    work = plan.job.workload
    if work.updates > 1:
        where, problem = "job.workload.updates", "learns from a step's prompts in several updates"
        raise export.refused(where, problem, "1 in a run without an end", work.updates)
    if plan.in_flight == "drain":
        problem = "waits for responses under way before weights are synced"
        raise export.refused("in_flight", problem, "keep, recompute", plan.in_flight)
    export.put("fully_async", True)
    export.put("staleness", age)
    export.put("workers", work.prompts * (age + 1))
    export.put("clears_cache", plan.in_flight == "recompute")
    return FULLY_ASYNC


def _pools(export: Export) -> None:
    """Write which roles share GPUs: all, or policy and reference, and how many each has."""
    home = export.plan.tasks[UPDATE].pool
    export.put("colocated", not export.apart)
    for role in export.roles:
        if not export.apart:
            export.check_home(role, ": generation shares its GPUs, and so do all")
        elif role != "actor":
            _check_alone(export, role)
        nodes, gpus = export.nodes(export.pool(role))
        export.put(f"{role}_nodes", nodes)
        export.put(f"{role}_gpus_per_node", gpus)
    if "reference" in export.roles and export.apart:
        export.put("beside_reference", export.pool("reference").name == home)
    if not export.apart and export.plan.bucket_bytes is not None:
        export.put("bucket_gib", export.plan.bucket_bytes / GIB)


def _check_alone(export: Export, role: Role) -> None:
    """Refuse roles that share a pool, other than policy and reference."""
    pool = export.pool(role)
    beside: list[str] = [
        each for each in export.roles if each != role and export.pool(each).name == pool.name
    ]
    if set(beside) <= ({"actor"} if role == "reference" else set()):
        if pool.name != export.generate.pool:
            return
        beside = ["engines"]
    problem = f"holds {' and '.join((role, *beside))} together"
    allowed = "policy and reference, or each on GPUs of its own"
    raise export.refused(f"pools.{pool.name}.roles", problem, allowed)


def _work(export: Export) -> None:
    work = export.plan.job.workload
    if export.turns > 1:
        where, problem = "job.workload.environments", "limits each turn of an episode, not all"
        raise export.refused(where, problem, "one turn a response", export.turns)
    export.put("prompts", work.prompts)
    export.put("mini_prompts", export.update_size(work.prompts, "prompt"))
    if "critic" in export.roles:
        export.put("critic_mini_prompts", export.update_size(work.prompts, "prompt"))
    export.put("samples", work.samples_per_prompt)
    export.put("epochs", work.epochs)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_input", export.longest_prompt)
    export.put("max_response", export.longest_response)
    if work.max_total_tokens is not None:
        export.put("max_model_len", work.max_total_tokens)
    export.values |= DATA
    export.put_algorithm()
    if export.resamples:
        sampling = export.plan.job.dynamic_sampling or DynamicSampling()
        rounds = sampling.max_rounds
        export.put("filters", True)
        export.put("filter_rounds", rounds if rounds < NO_LIMIT else -1)


def _role(export: Export, role: Role) -> None:
    """Write one role's trainer."""
    trained, layout = export.task(role, trains=True), export.layout(role)
    options = export.plan.job.trainer(role)
    models = export.plan.job.models
    if role == "critic" or (role == "reference" and models[role] != models["actor"]):
        export.values[f"{export.sheet.roles[role]}.model.path"] = export.model(role)
    export.put_cut(role)
    export.put_size(role, "shard_ranks", layout.shard_ranks or -1)
    export.put_size(role, "reshards", layout.zero == FULLY_SHARDED)
    export.put_size(role, "cpu_offload", options.host_states)
    if options.host_optimizer:
        export.put_size(role, "cpu_optimizer", True)
        export.put_size(role, "host_fraction", options.host_optimizer)
    _check_formats(export, role, options)
    if trained is None:
        return
    export.put_size(role, "max_gradient_norm", export.losses["max_gradient_norm"])
    export.put("checkpoints", trained.recompute != "none")
    if trained.recompute != "none":
        export.put_recomputed(role, trained.recompute)
    if export.trainer == FSDP and trained.offload:
        leaves = "optimizer" in states_leaving(export.plan.job, role)
        export.put("steps_offload" if role == "actor" else "critic_steps_offload", leaves)
    if role == "actor":
        _logits(export, options)


def _check_formats(export: Export, role: Role, options: TrainerOptions) -> None:
    """Refuse formats of weights that no key names: FSDP's reference is in bf16, all that is trained in fp32."""
    usual = "bf16" if export.trainer == FSDP and role == "reference" else None
    if options.weights != usual:
        where, problem = f"job.trainers.{role}.weights", "keeps weights in another format"
        raise export.refused(where, problem, str(usual), options.weights)


def _logits(export: Export, options: TrainerOptions) -> None:
    """Write how log-probabilities are made, and whether entropies are."""
    bonus, way = export.losses["entropy_coefficient"], options.logits
    if bonus or way == "in-place-entropy":
        export.put("entropy_loss", True)
        export.put("entropy_weight", bonus)
    if way == "fused-linear":
        export.put("fuses_head", True)
    elif export.trainer == MEGATRON and way == "vocab-parallel":
        export.put("logprob_chunk", None)
    elif options.logit_chunk_tokens is not None:
        export.put("logprob_chunk", options.logit_chunk_tokens)


def _batches(export: Export) -> None:
    """Write micro-batches, or a budget of tokens, which are the same for all roles."""
    trained = export.plan.tasks[UPDATE]
    passed = next(
        (found for role in export.roles if (found := export.task(role, trains=False))), trained
    )
    export.put("packs", load_engine(trained.engine).padding == "none")
    export.put("budget", trained.token_budget or -1)
    packed = trained.token_budget is not None
    export.put_size("actor", "micro_batch", 1 if packed else trained.micro_batch)
    export.put_size("actor", "infer_micro_batch", 1 if packed else passed.micro_batch)


def _generation(export: Export) -> None:
    layout = export.generate
    export.put("rollout_engine", _engine(export))
    export.put("eager", layout.engine.endswith("-eager"))
    if export.plan.job.rollout_precision is not None:
        export.put("rollout_quantised", export.plan.job.rollout_precision)
    copies = max(1, layout.ep // layout.tp)
    gpus = export.plan.pool(layout.pool).gpus
    export.put("engines", max(1, gpus // (layout.tp * layout.pp * copies)))
    export.put("rollout_tp", layout.tp)
    export.put("rollout_pp", layout.pp)
    export.put("rollout_dp", copies)
    export.put("rollout_ep", layout.ep)
    export.put("memory_fraction", layout.memory_fraction)
    export.put("running", layout.max_running)
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)
        if export.trainer == MEGATRON:
            export.put("merges", adapter.sync == "merged")
    of_critic = export.plan.job.adapter("critic")
    if of_critic is not None:
        export.put("critic_lora_rank", of_critic.rank)
        export.put("critic_lora_alpha", of_critic.alpha or of_critic.rank)


def _engine(export: Export) -> str:
    """Return the sheet of the engine's word."""
    known: Mapping[str, object] = export.sheet.settings["rollout_engine"].values
    return str(known[export.engine_word(known)])


def _losses(export: Export) -> None:
    export.put_losses()
    export.put_rates()
    if export.losses["loss_mean"] == SUMS:
        export.values[NORM] = export.plan.job.workload.longest_sequence_tokens
    place, weight = export.penalty
    export.put("kl_loss", place == "loss")
    export.put("kl_in_reward", place == "reward")
    if place != "none":
        export.put("kl_weight", weight)
    _policy_loss(export)


def _policy_loss(export: Export) -> None:
    """Write the loss: one of the log-probabilities that the engine sampled by, where no pass makes others."""
    job, dual = export.plan.job, export.losses["clip_ratio_dual"]
    sampled = job.old_log_prob == "engine" or export.plan.flow.is_endless
    if job.algorithm == CISPO:
        if sampled:
            export.put("cispo_anchor", "rollout")
    elif "policy_loss" in words_of(export.sheet.algorithms, job.algorithm):
        return
    elif sampled:
        export.put("policy_loss", OF_SAMPLED)
        export.notes.append(
            "without a pass for old log-probabilities it learns by the loss rollout_is, which leaves out tokens whose "
            "ratio to what the engine sampled by is outside the clips"
        )
    elif dual is not None:
        export.put("policy_loss", DUAL)
        export.put("dual_clip", dual)
    else:
        export.put("policy_loss", "default")
