"""TRL: a script that starts a server of vLLM, where generation has GPUs of its own, and the training by accelerate."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rlplan.job import Job
from rlplan.plan import USUAL_MODE, TaskPlan
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.reading.versions import lacks_key
from rlplan.planner.configs.run import unusual, with_adapter_sent
from rlplan.planner.configs.sizes import MOST_RUNNING
from rlplan.planner.configs.writing.export import (
    UPDATE,
    Export,
    Value,
    Variable,
    family,
    launch_script,
)
from rlplan.planner.frameworks.trl.reading import RLOO
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.catalog import resolve_job
from rlplan.rules.layouts import FULLY_SHARDED

COLOCATED: Final = "colocated"
SERVER: Final = "vllm_serve."
ENGINE: Final = {"vllm": "vllm-0.15"}
DATA: Final = Variable(name="DATASET", default=None, meaning="a data set with a column of prompts")
REWARDS: Final = Variable(
    name="REWARD_FUNCTIONS", default=None, meaning="name, or import path, of a reward function"
)
OUTPUT: Final = Variable(name="OUTPUT", default="output", meaning="where checkpoints go")
HOST: Final = Variable(
    name="SERVER_HOST",
    default="127.0.0.1",
    meaning="where vLLM's server runs; with SERVER_STARTED=1 none is started here",
)
MACHINES: Final = (
    '    --machine_rank "${MACHINE_RANK:-0}" --main_process_ip "${MAIN_ADDRESS:?of the first machine}" '
    "--main_process_port 29500"
)


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    export.check_roles(("actor", "reference", "reward"), ("reference",))
    for role in export.roles:
        export.check_home(role)
    if export.plan.mode != USUAL_MODE:
        problem = "overlaps generation and training"
        raise export.refused("mode", problem, USUAL_MODE, export.plan.mode)
    if export.turns > 1:
        problem, allowed = "plays several turns, by Python functions of one's own", "one turn"
        raise export.refused("job.workload.environments", problem, allowed, export.turns)
    rloo = export.plan.job.algorithm == RLOO
    export.values["model_name_or_path"] = export.model("actor")
    export.values["output_dir"] = OUTPUT
    export.values["dataset_name"] = DATA
    _rewards(export)
    _launch(export)
    _work(export, rloo=rloo)
    _generation(export)
    _losses(export, rloo=rloo)
    return f"-m trl.scripts.{RLOO if rloo else 'grpo'}"


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as the scripts that are written here run it: DeepSpeed trains, and vLLM generates.

    DeepSpeed keeps fp32 beside weights that are loaded in 16 bits, which a trainer without it does not. Versions without
    a key for sleep mode have engines that stay awake beside a training on the same GPUs; those that do not correct for how engines
    sample pass over responses of one update no second time. An engine gets weights with the adapter merged into them.
    """
    job = with_adapter_sent(job, "merged")
    trained, engines, options = sheet.trainers[trainer], job.engines, job.trainers
    if not any(fnmatchcase(engines.train or "", pattern) for pattern in trained.exports):
        engines = replace(engines, train=trained.engine)
    kept = {role: replace(each, weights=None) for role, each in (options or {}).items()}
    options = unusual(kept)
    if family(engines.generate or "") not in {family(each) for each in ENGINE.values()}:
        usual = sheet.settings["rollout_engine"].values["True"]
        engines = replace(engines, generate=str(usual))
    if way.name == COLOCATED and _lacks(sheet, "sleeps"):
        engines = replace(engines, sleeps=False)
    old, work = job.old_log_prob, job.workload
    once = job.algorithm != RLOO and work.updates == work.epochs == 1
    if once and _lacks(sheet, "corrects_sampling"):
        old = "engine"
    other = replace(job, engines=engines, trainers=options, old_log_prob=old)
    return job if other == job else resolve_job(other, Path(), file="job")


def _lacks(sheet: ConfigSheet, setting: str) -> bool:
    """Tell whether a version has no key to turn a setting on."""
    return all(lacks_key(sheet, key, True) for key in sheet.settings[setting].keys)


def text_of(export: Export, start: str) -> str:
    """Return the script: a server first, where there is one, then accelerate with its flags, then the trainer's."""
    every, front = dict(export.values), export.sheet.launch.in_front
    launch = [
        f"--{key} {value}" for key, value in every.items() if key in front and value is not True
    ]
    launch += [f"--{key}" for key, value in every.items() if key in front and value is True]
    export.values = {
        key: value
        for key, value in every.items()
        if key not in front and not key.startswith(SERVER)
    }
    several = int(str(every["num_machines"])) > 1
    words = ["accelerate launch", *launch]
    begins = " ".join(words) + (f" \\\n{MACHINES} \\\n    {start}" if several else f" {start}")
    text = launch_script(export, begins, lambda key, value: f"--{key} {value}")
    export.values = every
    if any(key.startswith(SERVER) for key in every):
        text = text.replace("\n" + begins, f"\n{_server(export, every)}\n{begins}")
    return text


def _server(export: Export, every: dict[str, Value]) -> str:
    """Return the lines that start a server, unless it runs elsewhere already."""
    flags = " ".join(
        f"--{key.removeprefix(SERVER)} {value}"
        for key, value in every.items()
        if key.startswith(SERVER)
    )
    here, cards = "", ""
    trained, other = (export.plan.pool(each).gpus for each in _pools(export))
    if str(every["num_machines"]) == "1" and trained + other <= _per_node(export):
        shown = ",".join(map(str, range(trained, trained + other)))
        cards = f"CUDA_VISIBLE_DEVICES={shown} "
        here = f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(trained)))}\n"
    return (
        f'if [[ -z "${{SERVER_STARTED:-}}" ]]; then\n'
        f'    {cards}trl vllm-serve --model "${{ACTOR_MODEL}}" {flags} &\n'
        f"fi\n{here}"
    )


def _pools(export: Export) -> tuple[str, str]:
    return export.plan.tasks[UPDATE].pool, export.generate.pool


def _per_node(export: Export) -> int:
    device = export.plan.pool(export.generate.pool).device
    return max(group.gpus_per_node for group in export.plan.job.cluster if group.gpu == device)


def _rewards(export: Export) -> None:
    if "reward" in export.roles:
        export.values["reward_model_name_or_path"] = export.model("reward")
    else:
        export.values["reward_funcs"] = REWARDS


def _launch(export: Export) -> None:
    """Write what accelerate starts: processes, and DeepSpeed's stage."""
    layout = export.layout("actor")
    if export.trainer != "deepspeed":
        problem = "is wrapped otherwise than by DeepSpeed"
        raise export.refused(f"tasks.{UPDATE}.engine", problem, "deepspeed", layout.engine)
    nodes, gpus = export.nodes(export.pool("actor"))
    export.values["num_processes"] = nodes * gpus
    export.values["num_machines"] = nodes
    precision = export.plan.job.precision or "bf16"
    if precision not in {"bf16", "fp16"}:
        raise export.refused("job.precision", "is no format of it", "bf16 or fp16", precision)
    export.values["mixed_precision"] = precision
    export.put("uses_deepspeed", True)
    export.values["zero_stage"] = layout.zero
    if layout.zero == FULLY_SHARDED:
        export.values["zero3_init_flag"] = "true"


def _steps_together(export: Export, steps: int, at_a_time: int) -> int:
    """Return the micro-batches of a rank whose completions are generated by one call: all, unless engines run a part of them at most.

    Args:
        steps: Micro-batches of a rank in an iteration.
        at_a_time: Completions of a micro-batch of all ranks.
    """
    layout = export.generate
    part, left = divmod(layout.max_running * layout.dp, at_a_time)
    is_part = layout.max_running < MOST_RUNNING and not left and 0 < part < steps
    return part if is_part and steps % part == 0 else steps


def _work(export: Export, *, rloo: bool) -> None:
    """Write batches, which count completions, and how often they are learnt from."""
    work, layout = export.plan.job.workload, export.plan.tasks[UPDATE]
    _check_sizes(export, layout)
    at_a_time = layout.micro_batch * layout.dp
    steps, left = divmod(work.sequences, at_a_time)
    accumulation, uneven = divmod(steps, work.updates)
    if left or uneven or not accumulation:
        problem = f"x {layout.dp} GPUs x {work.updates} updates do not divide {work.sequences:,} completions"
        where = f"tasks.{UPDATE}.micro_batch"
        raise export.refused(where, problem, "a divisor", layout.micro_batch)
    export.put_size("actor", "micro_batch", layout.micro_batch)
    export.put("accumulation", accumulation)
    together = _steps_together(export, steps, at_a_time)
    if together != accumulation:
        export.put("generation_steps", together)
    export.put("samples", work.samples_per_prompt)
    export.put("epochs", work.epochs)
    export.put("max_response", export.longest_response)
    export.put("checkpoints", layout.recompute != "none")
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        export.put("peft", True)
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", round(adapter.alpha or adapter.rank))
    if not rloo:
        export.put_algorithm()


def _check_sizes(export: Export, layout: TaskPlan) -> None:
    """Refuse models that are cut, and micro-batches that are no number of sequences."""
    for name in ("tp", "pp", "cp", "ep"):
        if getattr(layout, name) > 1:
            raise export.refused(
                f"tasks.{UPDATE}.{name}", "cuts the model", "1", getattr(layout, name)
            )
    if layout.token_budget is not None:
        where, problem = f"tasks.{UPDATE}.token_budget", "packs sequences by tokens"
        raise export.refused(where, problem, "a micro-batch", layout.token_budget)


def _generation(export: Export) -> None:
    layout, job = export.generate, export.plan.job
    export.engine_word(ENGINE)
    if layout.pp > 1 or layout.ep > 1:
        name = "pp" if layout.pp > 1 else "ep"
        raise export.refused(
            f"tasks.actor.generate.{name}", "cuts the engine's model", "tp", getattr(layout, name)
        )
    longest = job.workload.longest_sequence_tokens
    export.put("use_vllm", True)
    export.put("server_mode", "server" if export.apart else "colocate")
    export.put("corrects_sampling", job.old_log_prob == "trainer")
    if export.apart:
        export.values["vllm_server_host"] = HOST
        export.put("server_tp", layout.tp)
        export.put("server_dp", layout.dp)
        export.put("server_memory", layout.memory_fraction)
        export.put("server_model_len", longest)
        export.put("server_eager", layout.engine.endswith("-eager"))
        if job.kv_cache is not None:
            export.put("server_cache", job.kv_cache)
        return
    export.put("rollout_tp", layout.tp)
    export.put("memory_fraction", layout.memory_fraction)
    export.put("sleeps", job.engines.sleeps)
    export.put("max_total", longest)


def _losses(export: Export, *, rloo: bool) -> None:
    export.put_losses()
    if rloo:
        for key in ("loss_type", "entropy_coef"):
            export.values.pop(key, None)
    elif export.plan.job.algorithm == "cispo":
        export.put_algorithm()
    if export.losses["entropy_coefficient"] == 0:
        export.values.pop("entropy_coef", None)
    export.put("temperature", export.losses["temperature"])
    place, weight = export.penalty
    wanted = "reward" if rloo else "loss"
    if place not in {"none", wanted}:
        raise export.refused(
            "job.hyperparameters.kl_in", "puts the penalty elsewhere", wanted, place
        )
    export.put("kl_weight", weight)
