"""EasyR1: a launch script with one override a line, over the defaults of its dataclasses."""

from dataclasses import replace
from typing import Final

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role
from rlplan.plan import USUAL_MODE, TaskPlan
from rlplan.planner.configs.losses import NO_LIMIT
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import with_adapter_sent
from rlplan.planner.configs.verl_family import NO_DUAL_CLIP
from rlplan.planner.configs.writing.export import Export, Variable, launch_script, states_leaving
from rlplan.planner.frameworks.easyr1.reading import OPTIMIZERS
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.catalog import load_engine
from rlplan.rules.layouts import FULLY_SHARDED

START: Final = "python3 -m verl.trainer.main"
MODELS: Final[tuple[Role, ...]] = ("actor", "critic")
# A key of its first version alone.
ENTROPY: Final = "worker.actor.entropy_coeff"
DATA: Final = {
    "data.train_files": Variable(
        name="TRAIN_FILES", default=None, meaning="data set with prompts, as NAME@SPLIT or a file"
    ),
    "data.val_files": Variable(
        name="VAL_FILES", default=None, meaning="data set for validation, as NAME@SPLIT or a file"
    ),
}
REWARD: Final = Variable(
    name="REWARD_FUNCTION", default=None, meaning="reward function, as FILE.py:FUNCTION"
)


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    _check(export)
    nodes, gpus = export.nodes(export.pool("actor"))
    export.put("nodes", nodes)
    export.put("gpus_per_node", gpus)
    _work(export)
    export.put_positions()
    export.values["worker.actor.model.model_path"] = export.model("actor")
    for role in export.roles:
        _role(export, role)
    _generation(export)
    _losses(export)
    return START


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as EasyR1 runs it: frozen weights beside an adapter in bf16, its matrices as units of their own; engines get it as it is."""
    del sheet, trainer, way
    if job.adapter("actor") is None:
        return job
    job = with_adapter_sent(job, "adapter")
    kept = replace(job.trainer("actor"), weights="bf16", adapters_apart=True)
    return replace(job, trainers=FrozenDict({**(job.trainers or {}), "actor": kept}))


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return launch_script(export, start, lambda key, value: f"{key}={value}")


def _check(export: Export) -> None:
    """Refuse roles, pools and modes that EasyR1 does not have."""
    export.check_roles(MODELS, ("reference",))
    for role in export.roles:
        export.check_home(role, ": all roles share one pool")
    plan, pool = export.plan, export.pool("actor").name
    if plan.mode != USUAL_MODE:
        raise export.refused("mode", "overlaps iterations", USUAL_MODE, plan.mode)
    if export.apart:
        problem = f"generates apart from training on pool {pool}"
        where = "tasks.actor.generate.pool"
        raise export.refused(where, problem, pool, export.generate.pool)
    if export.turns > 1:
        where, problem = "job.workload.environments", "plays episodes of several turns"
        raise export.refused(where, problem, "one turn a response", export.turns)


def _work(export: Export) -> None:
    work = export.plan.job.workload
    export.put("prompts", work.prompts)
    export.put("mini_prompts", export.update_size(work.prompts, "prompt"))
    export.put("samples", work.samples_per_prompt)
    export.put("epochs", work.epochs)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response)
    longest = export.longest_prompt + export.longest_response
    if work.max_total_tokens is not None:
        export.put("max_model_len", work.max_total_tokens)
    # Its engine's steps have to hold the longest sequence; its usual size otherwise.
    usual = export.sheet.settings["engine_tokens"].default
    assert isinstance(usual, int), "the sheet has it"
    if longest > usual:
        export.put("engine_tokens", longest)
    export.put_algorithm()
    if export.resamples:
        sampling = export.plan.job.dynamic_sampling
        rounds = sampling.max_rounds if sampling is not None else NO_LIMIT
        export.put("filters", True)
        export.put("filter_batches", rounds if rounds < NO_LIMIT else -1)
    export.values |= DATA
    export.values["worker.reward.reward_function"] = REWARD


def _role(export: Export, role: Role) -> None:
    """Write one role's trainer; the reference is cut and batched as the actor is."""
    trained, passed = export.task(role, trains=True), export.task(role, trains=False)
    layout, options = export.layout(role), export.plan.job.trainer(role)
    leaving = states_leaving(export.plan.job, role)
    export.put_size(role, "reshards", layout.zero == FULLY_SHARDED)
    leaves = layout.offload and (trained is None or "weights" in leaving)
    export.put_size(role, "param_offload", leaves)
    export.put_size(role, "cpu_offload", options.host_states)
    if trained is None:  # in fp32 unless something else is said: its own usual is bf16
        export.put_size(role, "model_dtype", options.weights)
        return
    export.put_size(role, "freezes_tower", options.freezes_tower)
    export.put_size(role, "optimizer_offload", layout.offload and "optimizer" in leaving)
    export.put_size(role, "shard_ranks", layout.shard_ranks or -1)
    export.put_size(role, "cp", layout.cp)
    if options.weights is not None and export.plan.job.adapter(role) is None:
        export.put_size(role, "model_dtype", options.weights)
    words = (word for word, meant in OPTIMIZERS.items() if meant == options.optimizer)
    export.put_size(role, "optimizer", str(next(words)))
    export.put_size(role, "max_gradient_norm", export.losses["max_gradient_norm"])
    export.put_size(role, "checkpoints", trained.recompute != "none")
    packs = load_engine(layout.engine).padding == "none"
    export.put("packs" if role == "actor" else "critic_packs", packs)
    _batches(export, role, trained, passed or trained)
    if role == "critic":
        export.values["worker.critic.model.model_path"] = export.model("critic")
        work = export.plan.job.workload
        export.put("critic_mini_prompts", export.update_size(work.prompts, "prompt"))
        export.put("critic_epochs", work.epochs)


def _batches(export: Export, role: Role, trained: TaskPlan, passed: TaskPlan) -> None:
    """Write micro-batches: sequences, or so many of the longest as a budget of tokens holds."""
    export.put_size(role, "dynamic", trained.token_budget is not None)
    export.put_size(role, "micro_batch", _sequences(export, f"{role}.update", trained))
    export.put_size(role, "infer_micro_batch", _sequences(export, f"{role}'s passes", passed))


def _sequences(export: Export, task: str, layout: TaskPlan) -> int:
    """Return how many of the longest sequences a micro-batch holds.

    Raises:
        FileError: It holds a part of one.
    """
    if layout.token_budget is None:
        return layout.micro_batch
    longest = export.longest_prompt + export.longest_response
    sequences, left = divmod(layout.token_budget, longest)
    if left or not sequences:
        problem = f"is no number of the longest sequences of {longest:,} tokens"
        allowed = f"a multiple of {longest:,}"
        raise export.refused(f"tasks.{task}.token_budget", problem, allowed, layout.token_budget)
    return sequences


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    export.values["worker.rollout.name"] = export.engine_word(
        export.sheet.settings["rollout_engine"].values
    )
    export.put("eager", layout.engine.endswith("-eager"))
    export.put("rollout_tp", layout.tp)
    export.put("memory_fraction", layout.memory_fraction)
    adapter = job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)


def _losses(export: Export) -> None:
    export.put_losses()
    bonus = export.losses["entropy_coefficient"]
    if bonus and not export.keeps_job:
        where, problem = "job.hyperparameters.entropy_coefficient", "adds entropies to the loss"
        raise export.refused(where, problem, "0", bonus)
    del export.values[ENTROPY]
    if export.losses["clip_ratio_dual"] is None:
        export.values["worker.actor.clip_ratio_dual"] = NO_DUAL_CLIP
    export.put_rates()
    place, weight = export.penalty
    export.put("no_kl", place == "none")
    if place != "none":
        export.put("kl_loss", place == "loss")
        export.put("kl_weight", weight)
