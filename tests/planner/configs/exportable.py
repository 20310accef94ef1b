"""Random plans that a framework can run: a job, one of its arrangements, layouts that its trainers have."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.layout import layers_of_stages
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.configs.proposing.ways import as_run
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.sizes import usual_running
from rlplan.planner.layouts.settings import PoolCuts, generate_layouts
from rlplan.planner.placements.partitions import GENERATION, all_placements
from rlplan.planner.plans.assembly import assemble, pool_roles
from rlplan.profiles.catalog import ENGINES, load_device, load_engine, resolve_job
from rlplan.profiles.sheets import load_framework
from rlplan.rules import refusals
from rlplan.rules.batches import rank_sequences
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.workload import Environment, Logged, Workload

MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen3-8b", "llama-3.1-8b", "qwen3-30b-a3b")
POOL_GPUS = (2, 4, 8, 16, 32)
# What there is where no key names what is learnt by.
UNNAMED = ("grpo", "reinforce-plus-plus")
PLAYED = Environment(name="sandbox", turns=4, observation_tokens=200, step_seconds=1.5)


def drawn_plan(random, target):
    """Return a plan that some random draws amount to; None where its parts do not go together."""
    sheet = load_config_sheet(target)
    way = random.choice(sheet.arrangements)
    trainer = sheet.trainers[random.choice(way.trainers)]
    job = _job(random, sheet, trainer)
    name = next(key for key, each in sheet.trainers.items() if each == trainer)
    try:
        job = as_run(job, sheet, name, way)
    except FileError:
        return None
    if not set(way.needs) <= set(job.models):
        return None
    if way.updates is not None:
        job = replace(job, workload=replace(job.workload, updates=way.updates))
    placements = [each for each in all_placements(job) if way.allows(each)]
    if not placements:
        return None
    placement = random.choice(placements)
    pools = _pools(random, placement, way, job)
    total = sum(pool.gpus for pool in pools)
    if total > job.gpus:
        job = replace(job, cluster=(replace(job.cluster[0], nodes=-(-total // 8)),))
    layouts = _Layouts(random, way, name, trainer, job, pools).drawn()
    if layouts is None:
        return None
    mode = random.choice(way.modes)
    if random.random() < 0.5:
        fixed = {task for task in layouts if task.startswith("reward.")}
        layouts = _packed(layouts, fixed, job, random.choice((1, 2)))
    plan = assemble(job, pools, layouts, made_by="drawn", mode=mode)
    if mode == "async":
        every = way.sync_every or random.choice((1, 2, 4))
        old = max(way.least_staleness, every - 1, 1) + random.choice((0, 1, 3))
        flows = random.choice(way.in_flight or ("drain", "recompute"))
        plan = replace(plan, staleness=float(old), sync_every=every, in_flight=flows)
        if target == "openrlhf" and old == 1:
            plan = replace(plan, in_flight="keep")
    return None if any(refusals(plan, job, ENGINES)) else plan


def _packed(layouts, fixed, job, times):
    """Return layouts whose trainers pack sequences, up to so many of the longest for a rank."""
    longest = job.workload.longest_sequence_tokens
    return {
        name: layout
        if layout.engine == job.engines.generate or name in fixed
        else replace(layout, micro_batch=1, token_budget=times * longest * layout.cp)
        for name, layout in layouts.items()
    }


def _job(random, sheet, trainer):
    estimator = sheet.settings.get("estimator")
    words = UNNAMED if estimator is None else estimator.values.values()
    known = dict.fromkeys((*words, *sheet.algorithms))
    algorithm = load_algorithm(random.choice([str(each) for each in known]))
    updates = random.choice((1, 1, 2, 4))
    compares = "reference" in algorithm.required_roles
    penalty = Hyperparameters(
        kl_coefficient=random.choice((0.0, 0.001, 0.01)),
        kl_in=random.choice(("loss", "reward")) if compares else "none",
        clip_ratio=random.choice((None, 0.2, 0.25)),
        loss_mean=random.choice((None, None, "token", "sequence")),
        learning_rate=random.choice((1e-6, 5e-7)),
        temperature=random.choice((1.0, 0.7)),
    )
    scored = "reward" in sheet.roles or "reward_on" in sheet.settings
    model = random.choice(MODELS)
    job = Job(
        name="drawn",
        algorithm=algorithm.name,
        framework=trainer.framework,
        engines=Engines(train=trainer.engine),
        models=FrozenDict({"actor": model}),
        workload=Workload(
            prompts=updates * random.choice((64, 128, 256)),
            samples_per_prompt=random.choice((2, 4, 8)) if algorithm.groups else 1,
            prompt_tokens=Logged(mean=200, max=random.choice((512, 1024, 2048))),
            response_tokens=Logged(mean=800, max=random.choice((2048, 8192))),
            updates=updates,
            epochs=random.choice((1, 1, 2)),
            environments=(PLAYED,) if random.random() < 0.2 and not algorithm.one_sample else (),
        ),
        cluster=(NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=8, nodes=8),),
        hyperparameters=penalty,
    )
    roles = list(algorithm.roles_needed(job))
    rewarded = scored and "reward" in {*algorithm.required_roles, *algorithm.optional_roles}
    roles = [role for role in roles if role != "reward"]
    models = dict.fromkeys(roles, model)
    if rewarded and random.random() < 0.3:
        models["reward"] = "qwen2.5-1.5b"
    rewards = None if "reward" in models else Rewards(function="exact_match")
    job = replace(job, models=FrozenDict(models), rewards=rewards)
    return resolve_job(job, Path(), file="drawn")


def _pools(random, placement, way, job):
    sizes = [random.choice(POOL_GPUS) for _ in placement]
    if way.whole_nodes:
        sizes = [max(8, size) for size in sizes]
    gpu = job.cluster[0].gpu
    pools = [
        ResourcePool(name=f"p{place}", device=gpu, gpus=size, roles=pool_roles(members))
        for place, (members, size) in enumerate(zip(placement, sizes, strict=True))
    ]
    return sorted(pools, key=lambda pool: -pool.gpus)


class _Layouts:
    """Draw the layouts of all tasks, those that tasks share only once."""

    def __init__(self, random, way, name, trainer, job, pools):
        self.name = name
        self.random, self.way, self.trainer, self.job, self.pools = random, way, trainer, job, pools
        self.tasks = tasks_of(load_algorithm(job.algorithm), job)
        self.known = {}

    def drawn(self):
        """Return the layouts by task; None where there are none."""
        found = {}
        for task in self.tasks:
            if task.kind == "rule":
                continue
            layout = self._generation() if task.kind == "generate" else self._trained(task)
            if layout is None:
                return None
            found[task.name] = layout
        return found

    def _pool(self, role, generates=False):
        held = [pool for pool in self.pools if role in pool.roles]
        if role == "actor" and self.way.apart:
            alone = [pool for pool in held if pool.roles == ("actor",)]
            if generates:
                return alone[-1]
            return next(pool for pool in held if pool is not alone[-1])
        return held[0]

    def _generation(self):
        pool, engine = self._pool("actor", generates=True), load_engine(self.job.engines.generate)
        model = self.job.architecture("actor")
        fixed = self._fixed("generate", "actor")
        found = [
            each
            for each in generate_layouts(PoolCuts(model, engine, self.job, pool.gpus, 8))
            if (each.ep == 1 or ((each.expert_tp or each.tp) == 1 and each.ep % each.tp == 0))
            and each.pp == 1
        ]
        if not found:
            return None
        if self.way.usual_running:
            fixed["max_running"] = usual_running(load_device(self.job.cluster[0].gpu))
        layout = replace(self.random.choice(found), pool=pool.name, **fixed)
        share = self.random.choice((0.5, 0.6, 0.85))
        return replace(layout, memory_fraction=share)

    def _fixed(self, kind, role):
        absent = (
            ({"tp", "pp", "cp", "ep"} - {*self.trainer.sizes, *self.trainer.allocates})
            if kind != "generate"
            else ()
        )
        given = dict.fromkeys(absent, 1)
        chosen = self.known.setdefault("choice", self.random.choice(self.way.choices or ({},)))
        drafts = (
            each.get(name)
            for each in (self.trainer.layouts, self.way.layouts, chosen)
            for name in ((kind,) if kind == "generate" else (kind, role))
        )
        for draft in drafts:
            if draft is not None:
                values = {each.name: getattr(draft, each.name) for each in fields(draft)}
                given |= {key: value for key, value in values.items() if value is not None}
        return given

    def _trained(self, task):
        role, trains = task.role, task.kind == "train"
        pool, engine = self._pool(role), load_engine(self.job.engines.train)
        model = self.job.architecture(role)
        fixed = self._fixed(task.kind, role)
        cut = self._cut(role, model, engine, pool, fixed)
        if cut is None:
            return None
        local = rank_sequences(cut.dp, self.job.workload, trains=trains)
        divisors = [size for size in (1, 2, 4, 8) if local % size == 0]
        kinds = self.trainer.recompute or engine.recompute_modes
        drawn = {
            "micro_batch": self.random.choice(divisors),
            "offload": self._offload(role),
            "recompute": self.random.choice(kinds) if trains else "none",
        }
        for each in self.way.shared:
            mine = not each.trainers or self.name in each.trainers
            if mine and task.kind in each.kinds and (not each.roles or role in each.roles):
                for name in set(each.fields) & set(drawn):
                    drawn[name] = self.known.setdefault((each, name), drawn[name])
        if local % drawn["micro_batch"]:
            return None
        zero = cut.zero if trains or cut.zero == FULLY_SHARDED else 0
        sizes = {name: getattr(cut, name) for name in ("tp", "pp", "dp", "cp", "ep")}
        sizes |= {"expert_tp": cut.expert_tp or None, "zero": zero}
        return TaskPlan(pool=pool.name, engine=engine.name, **(sizes | drawn | fixed))

    def _cut(self, role, model, engine, pool, fixed):
        """Return a role's sizes: those that are known already, or new ones."""
        mine = (each for each in self.way.shared if not each.trainers or self.name in each.trainers)
        tied = next((each for each in mine if "tp" in each.fields), None)
        name = "all" if tied and (not tied.roles or role in tied.roles) else role
        known, stage = self.known.get(name), self._fixed("train", role)
        found = [
            each
            for each in PoolCuts(model, engine, self.job, pool.gpus, 8).train()
            if all(getattr(each, size) == fixed.get(size, getattr(each, size)) for size in ("tp", "pp", "cp", "ep"))
            and (known is None or (known.tp, known.pp, known.cp, known.ep, known.zero)
                 == (each.tp, each.pp, each.cp, each.ep, each.zero))
            and each.zero == stage.get("zero", each.zero)
            and len(set(layers_of_stages(model.num_layers, each.pp, 0, 0))) == 1
        ]  # fmt: skip
        own = self.known.get(role)
        if own is not None:
            return own if own.tp * own.pp * own.cp * own.dp == pool.gpus else None
        if not found:
            return None
        self.known[role] = self.random.choice(found)
        self.known.setdefault(name, self.known[role])
        return self.known[role]

    def _offload(self, role):
        trained = any(task.kind == "train" and task.role == role for task in self.tasks)
        tied = any("offload" in each.fields for each in self.way.shared)
        key = ("offload", "all" if trained and tied else role)
        choices = self.way.offload if trained else (False, True)
        return self.known.setdefault(key, self.random.choice(choices))


def refusals_of(counts: Counter) -> str:
    """Return what was refused how often, for a report."""
    return "\n".join(f"{number} {what}" for what, number in counts.most_common())


__all__ = ["GENERATION", "drawn_plan", "load_framework", "refusals_of"]
