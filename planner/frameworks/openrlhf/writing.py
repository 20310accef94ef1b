"""OpenRLHF: a launch script with one flag a line."""

from dataclasses import replace
from typing import Final

from rlplan.job import Job, Role
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import (
    with_adapter,
    with_adapter_sent,
    with_own_reference,
)
from rlplan.planner.configs.writing.export import (
    UPDATE,
    Export,
    Variable,
    as_flag,
    launch_script,
    states_leaving,
)
from rlplan.planner.frameworks.openrlhf.reading import ADAPTER_NOTE
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.sheets import load_engine

START: Final = "python3 -m openrlhf.cli.train_ppo_ray"
MODELS: Final[tuple[Role, ...]] = ("actor", "critic", "reward")
PROMPTS: Final = Variable(name="TRAIN_FILES", default=None, meaning="a data set with prompts")
REWARDS: Final = Variable(
    name="REWARD_ADDRESS", default=None, meaning="address, or Python file, of the reward function"
)
AGENT: Final = Variable(
    name="AGENT", default=None, meaning="Python file of the agent that plays the environments"
)


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    export.check_roles(MODELS, ("reference",))
    _pools(export)
    for role in export.roles:
        if role in MODELS:
            export.values[f"{role}.model_name_or_path"] = export.model(role)
    if export.turns > 1:
        export.values["train.agent_func_path"] = AGENT
    elif "reward" not in export.roles:
        export.values["reward.remote_url"] = REWARDS
    export.values["data.prompt_dataset"] = PROMPTS
    _work(export)
    _trainer(export)
    _generation(export)
    _losses(export)
    return START


def text_of(export: Export, start: str) -> str:
    """Return the script; switches that are off are left out."""
    export.values = {key: value for key, value in export.values.items() if value is not False}
    return launch_script(export, start, as_flag)


def as_run(job: Job, _sheet: ConfigSheet, _trainer: str, _way: Arrangement) -> Job:
    """Return a job as it is run where it leaves that open: with an adapter the critic has one too, the reference is a model of its own, and the engine gets merged weights."""
    adapter = job.adapter("actor")
    if adapter is None:
        return job
    if "critic" in job.models:
        job = with_adapter(job, "critic", replace(adapter, shares_reference=True))
    return with_own_reference(with_adapter_sent(job, "merged"))


def _pools(export: Export) -> None:
    """Write the pools: all roles together, or each on GPUs of its own but for pairs."""
    plan, home = export.plan, export.plan.tasks[UPDATE].pool
    others = list(export.roles[1:])
    together = [role for role in others if export.pool(role).name == home]
    everything = not export.apart or (plan.flow.overlaps and len(together) == len(others) > 1)
    if everything and together != others:
        role = next(role for role in others if role not in together)
        problem = f"holds the {role}, and generation shares the actor's GPUs"
        where = f"pools.{export.pool(role).name}.roles"
        raise export.refused(where, problem, "all roles on one pool, or generation on its own")
    export.put("colocate_all", everything)
    for role in export.roles:
        nodes, gpus = export.nodes(export.pool(role))
        export.put(f"{role}_nodes", nodes)
        export.put(f"{role}_gpus_per_node", gpus)
    if not everything:
        _pairs(export, together, others)
    pool = plan.pool(export.generate.pool)
    export.put("engines", pool.gpus // export.generate.tp)
    export.put("rollout_sleeps", not export.apart)
    _mode(export, plan)


def _pairs(export: Export, together: list[Role], others: list[Role]) -> None:
    """Write which roles share GPUs two by two."""
    for role in together:
        if role != "reference":
            problem = f"holds the {role} beside the actor, and not all roles"
            where = f"pools.{export.pool(role).name}.roles"
            raise export.refused(where, problem, f"the {role} on a pool of its own")
    export.put("colocate_actor_ref", "reference" in together)
    alone = [role for role in others if role not in together]
    held: dict[str, list[Role]] = {}
    for role in alone:
        held.setdefault(export.pool(role).name, []).append(role)
    pairs = [roles for roles in held.values() if len(roles) > 1]
    if any(set(roles) != {"critic", "reward"} for roles in pairs):
        wrong = next(roles for roles in pairs if set(roles) != {"critic", "reward"})
        where = f"pools.{export.pool(wrong[0]).name}.roles"
        problem = f"holds {' and '.join(wrong)} together"
        raise export.refused(where, problem, "actor and reference, critic and reward, or all")
    export.put("colocate_critic_reward", bool(pairs))


def _mode(export: Export, plan: Plan) -> None:
    if not plan.flow.overlaps:
        return
    age = export.whole_age("counts its queue in whole batches, and syncs weights after each")
    export.put("async", True)
    export.put("queue", age)
    export.put("partial_rollout", plan.flow.is_endless and plan.in_flight == "keep")


def _work(export: Export) -> None:
    work = export.plan.job.workload
    export.put("prompts", work.prompts)
    export.put("samples", work.samples_per_prompt)
    export.put("update_sequences", export.update_size(work.sequences, "sample"))
    export.put("epochs", work.epochs)
    export.put("max_total", work.longest_sequence_tokens)
    export.put("max_response", export.longest_response)
    export.put_algorithm()
    export.put("filters", export.resamples)


def _trainer(export: Export) -> None:
    """Write the sizes, which are the same for all roles: the actor's."""
    layout = export.layout("actor")
    for name in ("tp", "cp", "zero"):
        export.put_size("actor", name, getattr(layout, name))
    trained = export.plan.tasks[UPDATE]
    export.put("packs", load_engine(trained.engine).padding == "none")
    passed = next(
        (found for role in export.roles if (found := export.task(role, trains=False))), trained
    )
    export.put("checkpoints", trained.recompute != "none")
    _batches(export, trained, passed)
    leaves = trained.offload and "weights" in states_leaving(export.plan.job, "actor")
    export.put("trainer_sleeps", leaves)
    steps_on_host = export.plan.job.trainer("actor").host_optimizer > 0
    export.put_size("actor", "cpu_optimizer", steps_on_host or (trained.offload and not leaves))
    for role in ("reference", "reward"):
        if role in export.roles:
            export.put(f"{role}_offload", export.layout(role).offload)
    export.put("precision", export.plan.job.precision or "bf16")
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)
        export.notes.append(ADAPTER_NOTE)


def _batches(export: Export, trained: TaskPlan, passed: TaskPlan) -> None:
    """Write micro-batches by tokens or by samples; of tokens, those of samples are 1.

    What they are then changes no batch, but OpenRLHF goes on checking them against the batch (`train_ppo_ray.py`) and divides
    by them (`accumulated_gradient` of `openrlhf/utils/deepspeed/deepspeed.py`).
    """
    dynamic = trained.token_budget is not None
    export.put_size("actor", "dynamic", dynamic)
    ranks = trained.tp * trained.cp
    if trained.token_budget is not None and passed.token_budget is not None:
        export.put("token_budget", trained.token_budget // ranks)
        export.put("infer_token_budget", passed.token_budget // ranks)
    export.put_size("actor", "micro_batch", 1 if dynamic else trained.micro_batch)
    export.put_size("actor", "infer_micro_batch", 1 if dynamic else passed.micro_batch)


def _generation(export: Export) -> None:
    layout = export.generate
    export.engine_word(export.sheet.settings["rollout_engine"].values)
    export.put("rollout_tp", layout.tp)
    export.put("memory_fraction", layout.memory_fraction)
    export.put("eager", layout.engine.endswith("-eager"))


def _losses(export: Export) -> None:
    export.put_losses()
    if not export.losses["entropy_coefficient"] and export.plan.job.trainer("actor").logits is None:
        # A weight of 0 computes entropies all the same.
        export.values.pop("actor.entropy_coef", None)
    low, high = export.losses["clip_ratio"], export.losses["clip_ratio_high"]
    if low != high:
        export.values["actor.eps_clip_low_high"] = (low, high)
    export.put("temperature", export.losses["temperature"])
    place, weight = export.penalty
    export.put("kl_weight", weight)
    export.put("kl_loss", place == "loss")
