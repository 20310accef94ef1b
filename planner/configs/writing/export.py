"""What an export writes: a plan's values by a framework's keys, through the sheet by which they are imported."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Final

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import FileError
from rlplan.job import Job, KlPlace, Role
from rlplan.plan import Plan, Recompute, ResourcePool, TaskPlan
from rlplan.planner.configs.frameworks import framework_of_steps
from rlplan.planner.configs.losses import MOMENTS, words_of
from rlplan.planner.configs.reading.given import Flat, GivenValue, scalar
from rlplan.planner.configs.reading.sheet import ROLE, ConfigSheet, Scalar, Setting
from rlplan.planner.configs.sizes import GRAPHED
from rlplan.profiles.sheets import hugging_face_ids, load_framework, load_model, model_names
from rlplan.trainers import WHOLE_STEP, Captured, State
from rlplan.workload import longest

GENERATE, UPDATE = "actor.generate", "actor.update"
EAGER: Final = "-eager"
# What only the losses of a critic, or advantages from its values, need.
OF_CRITICS: Final = frozenset({"critic_learning_rate", "value_clip", "gae_lambda"})
# What is 0 where a job leaves it open, and what a framework may have by itself.
OPEN_AS_ZERO: Final = frozenset({"weight_decay"})
ANY: Final = "any"
# Megatron's words of dispatchers and their backends, and of what graphs capture.
DISPATCHER_WORDS: Final = {
    "all-gather": ("all-gather", ""),
    "deepep": ("flex", "deepep"),
    "hybridep": ("flex", "hybridep"),
}
# Of several words for the same, the first one that is read.
GRAPH_WORDS: Final[Mapping[Captured, str]] = {
    part: word for word, part in reversed(tuple(GRAPHED.items()))
}
_VERSION = re.compile(r"-\d+(\.\d+)*(-.*)?$")

Word = Callable[[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Stand for what no plan says, such as a data set: a variable of the script.

    Attributes:
        default: What it is if nobody sets it; None where somebody has to.
        meaning: What to set it to, in words.
    """

    name: str
    default: str | None
    meaning: str

    @property
    def in_file(self) -> str:
        """Return what stands for it in a file, which has no variables: its default, or what to set it to."""
        return self.default or self.meaning


Value = Scalar | Variable | tuple[Scalar, ...]
# The array of a model's flags that slime's and miles' files of models set.
MODEL_ARGS: Final = "MODEL_ARGS"


@dataclass(slots=True)
class Export:
    """Take a plan's values, key by key; the values are written as a framework's plug-in says.

    Attributes:
        file: The plan's name, for messages.
        trainer: Name of the trainer in the sheet.
        values: By key, in the order in which they are written.
        notes: What whoever starts it should know.
        model_file: A file of the framework's own that sets the model's flags; None where they are among the values.
        into: What a script starts that the values go into, empty where that is not known; None where there is no such script.
    """

    plan: Plan
    sheet: ConfigSheet
    file: str
    trainer: str = ""
    into: str | None = None
    values: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    model_file: Variable | None = None

    def __post_init__(self) -> None:
        """Find the trainer that trains as the plan's engine does."""
        self.trainer = self._trainer()

    @property
    def keeps_job(self) -> bool:
        """Tell whether the values go into a script that says of the job what no key here does."""
        return self.into is not None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the plan's tasks that have a model."""
        known = tasks_of(load_algorithm(self.plan.job.algorithm), self.plan.job)
        return tuple(task for task in known if task.has_model)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles that have models, the actor first."""
        return tuple(dict.fromkeys(("actor", *(task.role for task in self.tasks))))

    def task(self, role: Role, *, trains: bool) -> TaskPlan | None:
        """Return the layout in which a role trains, or in which it is passed over; None if it is not."""
        kind = "train" if trains else "infer"
        names = (each.name for each in self.tasks if each.role == role and each.kind == kind)
        name = next(names, None)
        return None if name is None else self.plan.tasks[name]

    def layout(self, role: Role) -> TaskPlan:
        """Return the layout that says how a role's model is cut."""
        found = self.task(role, trains=True) or self.task(role, trains=False)
        return self.generate if found is None else found

    @property
    def generate(self) -> TaskPlan:
        """Return the layout of generation."""
        return self.plan.tasks[GENERATE]

    def pool(self, role: Role) -> ResourcePool:
        """Return the pool of a role's model, where it is trained or passed over."""
        return self.plan.pool(self.layout(role).pool)

    @property
    def apart(self) -> bool:
        """Tell whether generation has a pool of its own."""
        return self.generate.pool != self.plan.tasks[UPDATE].pool

    def node_gpus(self, pool: ResourcePool) -> int:
        """Return the GPUs of a node of a pool's kind, of the smallest where they differ."""
        groups = (group for group in self.plan.job.cluster if group.gpu == pool.device)
        return min(group.gpus_per_node for group in groups)

    def nodes(self, pool: ResourcePool) -> tuple[int, int]:
        """Return a pool's nodes, and the GPUs of each.

        Raises:
            FileError: It takes nodes in part.
        """
        per_node = self.node_gpus(pool)
        if pool.gpus <= per_node:
            return 1, pool.gpus
        if pool.gpus % per_node:
            problem = f"takes nodes of {per_node} GPUs in part, with {', '.join(pool.roles)}"
            raise self.refused(
                f"pools.{pool.name}.gpus", problem, "whole nodes, or GPUs of one", pool.gpus
            )
        return pool.gpus // per_node, per_node

    @property
    def headline(self) -> str:
        """Return the comment that says what a script or file is of, and for which version."""
        plan, sheet = self.plan, self.sheet
        of_plan = f"{plan.job.name}: {plan.placement}, mode {plan.mode}"
        return f"# {of_plan}; for {sheet.title} {sheet.version}"

    @property
    def losses(self) -> dict[str, Scalar]:
        """Return what the losses and optimizers need, the algorithm's usual where the job leaves it open."""
        return losses_of(self.plan.job)

    @property
    def longest_prompt(self) -> int:
        """Return the longest prompt in tokens."""
        return longest(self.plan.job.workload.prompt_tokens)

    @property
    def longest_response(self) -> int:
        """Return the longest response in tokens."""
        return longest(self.plan.job.workload.response_tokens)

    @property
    def turns(self) -> int:
        """Return how often the model answers in an episode at most.

        Raises:
            FileError: Environments have copies of the policy beside them.
        """
        environments = self.plan.job.environments
        if any(each.inference == "inline" for each in environments):
            where, problem = (
                "job.workload.environments.0.inference",
                "answers beside each environment",
            )
            raise self.refused(where, problem, "remote", "inline")
        return max((longest(each.turns) for each in environments), default=1)

    @property
    def longest_observations(self) -> int:
        """Return the most tokens that environments add to an episode."""
        environments = self.plan.job.environments
        return max((each.longest_observations_tokens for each in environments), default=0)

    @property
    def penalty(self) -> tuple[KlPlace, float]:
        """Return where the penalty for leaving the reference goes, and its weight."""
        job = self.plan.job
        algorithm, given = load_algorithm(job.algorithm), job.hyperparameters
        if not algorithm.uses_reference(given):
            return "none", 0.0
        return given.kl_in or algorithm.kl_in, given.kl_coefficient

    @property
    def resamples(self) -> bool:
        """Tell whether groups of equal rewards are sampled again."""
        job = self.plan.job
        return load_algorithm(job.algorithm).resamples or job.dynamic_sampling is not None

    def prefix(self, key: str) -> str:
        """Return what hydra wants before a key that its configuration may not have."""
        return "++" if any(fnmatchcase(key, each) for each in self.sheet.added) else ""

    def put(self, name: str, value: Scalar) -> None:
        """Write a setting."""
        self._write(self.sheet.settings[name], ANY, value)

    def put_algorithm(self) -> None:
        """Write the words that name the algorithm.

        Raises:
            FileError: The framework has none for it.
        """
        name, known = self.plan.job.algorithm, self.sheet.settings["estimator"].values.values()
        words = words_of(self.sheet.algorithms, name)
        if words["estimator"] not in known:
            allowed = ", ".join(sorted({*map(str, known), *self.sheet.algorithms}))
            raise self.refused("job.algorithm", "learns by another algorithm", allowed, name)
        for setting, value in words.items():
            self.put(setting, value)

    def put_size(self, role: Role, name: str, value: Scalar) -> None:
        """Write a size of a role's model, where its trainer has a key for it."""
        setting = self.sheet.trainers[self.trainer].sizes.get(name)
        if setting is not None:
            self._write(setting.of(self.sheet.roles[role]), role, value)

    def put_recomputed(self, role: Role, recompute: Recompute) -> None:
        """Write what parts of layers, or whole ones, backward passes compute again.

        Raises:
            FileError: Parts of layers that the framework has no key for.
        """
        trainer = self.sheet.trainers[self.trainer]
        # Megatron's modules name no activation but that of experts: they are not all that is cheap to repeat.
        names_parts = "modules" in trainer.sizes
        unknown = recompute == "experts" and trainer.written_modules is None
        if unknown or (recompute == "selective" and names_parts):
            where = f"tasks.{role}.update.recompute"
            problem = "repeats what no module of it stands for"
            raise self.refused(where, problem, "none, attention, full", value=recompute)
        of_parts = recompute in ("attention", "experts")
        self.put_size(role, "granularity", "selective" if of_parts else recompute)
        if recompute == "experts":
            self.put_size(role, "modules", trainer.written_modules)

    def put_cut(self, role: Role) -> None:
        """Write how a role's model is cut."""
        layout = self.layout(role)
        for name in ("tp", "pp", "cp", "ep"):
            self.put_size(role, name, getattr(layout, name))
        for name in ("first_stage_layers", "last_stage_layers"):
            if getattr(layout, name) is not None:
                self.put_size(role, name, getattr(layout, name))
        if layout.ep > 1 and layout.expert_tp is not None:
            self.put_size(role, "expert_tp", layout.expert_tp)
        self._put_dispatcher(role)

    def _put_dispatcher(self, role: Role) -> None:
        """Write how tokens reach experts, and what graphs capture, where that is unusual."""
        options = self.plan.job.trainer(role)
        kind, backend = DISPATCHER_WORDS.get(options.dispatcher or "", ("", ""))
        if kind:
            self.put_size(role, "dispatcher", kind)
        if backend:
            self.put_size(role, "flex_backend", backend)
        if options.overlaps_exchange:
            self.put_size(role, "overlaps_exchange", True)
        if options.popularity_spread == 0:
            self.put_size(role, "experts_balanced", True)
        if options.graphs:
            whole = WHOLE_STEP in options.graphs
            self.put_size(role, "graphs", "full_iteration" if whole else "transformer_engine")
            if not whole:
                scope = [GRAPH_WORDS[part] for part in options.graphs]
                self.put_size(role, "graph_scope", ",".join(scope))

    def put_positions(self) -> None:
        """Write the actor's longest sequence where it is not what its own configuration says."""
        model = self.plan.job.architecture("actor")
        known = model.name in model_names()
        if known and load_model(model.name).max_positions != model.max_positions:
            self.put("positions", model.max_positions)

    def put_losses(self) -> None:
        """Write what the losses need, as far as the framework has keys for it."""
        for name, value in self.losses.items():
            used = name not in OF_CRITICS or "critic" in self.roles
            if value is None and name in OPEN_AS_ZERO and name in self.sheet.losses:
                value = 0.0 if self.sheet.losses[name].default else None
            if name in self.sheet.losses and value is not None and used:
                self._write(self.sheet.losses[name], ANY, value)
        betas = self.plan.job.hyperparameters.betas
        if betas is not None and MOMENTS[0] in self.sheet.settings:
            for moment, beta in zip(MOMENTS, betas, strict=True):
                self.put(moment, beta)

    def put_rates(self) -> None:
        """Write the learning rates of what is trained, and the temperature."""
        self.put("learning_rate", self.losses["learning_rate"])
        if "critic" in self.roles:
            self.put("critic_learning_rate", self.losses["critic_learning_rate"])
        self.put("temperature", self.losses["temperature"])

    def put_fixed(self, role: Role) -> None:
        """Write what a role's trainer is always given."""
        for key, value in self.sheet.trainers[self.trainer].fixed.items():
            self.values[key.replace(ROLE, self.sheet.roles[role])] = value

    def engine_word(self, known: Mapping[str, object]) -> str:
        """Return the word that means the engine that generates, of whatever version.

        Args:
            known: Engine sheets by word.

        Raises:
            FileError: None means it.
        """
        engine = family(self.generate.engine)
        for word, meant in known.items():
            if family(str(meant)) == engine:
                return word
        allowed = ", ".join(dict.fromkeys(map(str, known.values())))
        where, problem = f"tasks.{GENERATE}.engine", "generates by another engine"
        raise self.refused(where, problem, allowed, self.generate.engine)

    def model(self, role: Role) -> Variable:
        """Return the variable for a role's model: by default its id, where a sheet is of it."""
        name = self.plan.job.architecture(role).name
        default = next(iter(hugging_face_ids(name)), None)
        meaning = f"{name}: a Hugging Face id, or a folder"
        return Variable(name=f"{role.upper()}_MODEL", default=default, meaning=meaning)

    def check_roles(self, known: Sequence[Role], without: Sequence[Role] = ()) -> None:
        """Refuse roles that the framework does not have.

        Args:
            known: Whose models it names.
            without: Roles whose models are another's.
        """
        for role in self.roles:
            if role not in (*known, *without):
                raise self.refused(f"job.models.{role}", "is no role of it", ", ".join(known))

    def check_home(self, role: Role, why: str = "") -> None:
        """Refuse a role on another pool than the one on which the actor trains."""
        home, pool = self.plan.tasks[UPDATE].pool, self.pool(role)
        if pool.name != home:
            problem = f"holds the {role}, and the actor trains on pool {home}{why}"
            raise self.refused(f"pools.{pool.name}.roles", problem, f"the {role} on pool {home}")

    def refused(self, where: str, problem: str, allowed: str, value: object = None) -> FileError:
        """Return the error of what the framework cannot be told; of a plan for another, with how to find one for it."""
        name = self.sheet.name
        is_others = framework_of_steps(self.plan.job.framework) != name
        found = f"; rlplan search JOB --for {name} finds what it can run" if is_others else ""
        return FileError(
            self.file,
            f"{problem}; {self.sheet.title} {self.sheet.version} cannot do that",
            field=where,
            value=value,
            allowed=f"{allowed}{found}",
        )

    def update_size(self, whole: int, part: str) -> int:
        """Return how much of an iteration's `whole` prompts or samples one update learns from.

        Raises:
            FileError: An update would learn from a part of one of them.
        """
        updates = self.plan.job.workload.updates
        size, left = divmod(whole, updates)
        if left:
            where, problem = "job.workload.updates", f"leaves an update a part of a {part}"
            raise self.refused(where, problem, f"a divisor of {part}s, {whole}", updates)
        return size

    def whole_age(self, problem: str) -> int:
        """Return by how many whole updates samples may be stale, of a mode that syncs after each.

        Args:
            problem: How the framework counts, for whom a plan counts otherwise.

        Raises:
            FileError: The mode streams, or counts otherwise.
        """
        plan = self.plan
        if plan.flow.by_sample and not plan.flow.is_endless:
            problem, allowed = "hands responses on one by one", "sync, one-step-off, async"
            raise self.refused("mode", problem, allowed, plan.mode)
        if not float(plan.staleness).is_integer() or plan.sync_every > 1:
            where = "staleness" if plan.sync_every == 1 else "sync_every"
            value = getattr(plan, where)
            raise self.refused(where, problem, "whole numbers; sync_every 1", value)
        return int(plan.staleness)

    def flat(self) -> Flat:
        """Return the values as an import reads them; a variable is its default."""
        found = {}
        for key, value in self.values.items():
            named = value.default or value.name if isinstance(value, Variable) else value
            meant = list(named) if isinstance(named, tuple) else named
            found[key] = GivenValue(value=meant, where=f"{self.file}, exported")
        return found

    def _trainer(self) -> str:
        engine = self.plan.tasks[UPDATE].engine
        trainers = self.sheet.trainers.items()
        named = (name for name, trainer in trainers if engine in trainer.exports)
        found = (
            name
            for name, trainer in trainers
            if any(fnmatchcase(engine, pattern) for pattern in trainer.exports)
        )
        name = next(named, None) or next(found, None)
        if name is not None:
            return name
        known = (each.engine or load_framework(each.framework).engines.train
                 for each in self.sheet.trainers.values() if each.exports)  # fmt: skip
        where, allowed = f"tasks.{UPDATE}.engine", ", ".join(dict.fromkeys(map(str, known)))
        raise self.refused(where, "trains by another engine", allowed, engine)

    def _write(self, setting: Setting, role: str, value: Scalar) -> None:
        key = setting.written.get(role, setting.written.get(ANY, setting.keys[0]))
        if setting.values:
            words = (word for word, meant in setting.values.items() if meant == value)
            word = next(words, None)
            if word is None:
                allowed = ", ".join(map(str, dict.fromkeys(setting.values.values())))
                raise self.refused(key, "has no word for what the plan has", allowed, value)
            value = scalar(word)  # type: ignore[assignment]
        self.values[key] = value


def states_leaving(job: Job, role: Role) -> tuple[State, ...]:
    """Return which states of a trained role leave the GPUs where its layout off-loads them."""
    return load_framework(job.framework).leaving(job, role)


def family(engine: str) -> str:
    """Return an engine sheet's name without version and what follows it."""
    return _VERSION.sub("", engine.removesuffix(EAGER))


def losses_of(job: Job) -> dict[str, Scalar]:
    """Return what a job's losses and optimizers need, but for the penalty's place and weight.

    What it leaves open is as its algorithm usually has it.
    """
    algorithm, given = load_algorithm(job.algorithm), job.hyperparameters
    names = (each.name for each in fields(given) if each.name not in {"kl_in", "kl_coefficient"})
    found = {name: getattr(given, name) for name in names}
    low = algorithm.clip_ratio if given.clip_ratio is None else given.clip_ratio
    high = given.clip_ratio_high
    found["clip_ratio"] = low
    found["clip_ratio_high"] = max(low, algorithm.clip_ratio_high or 0.0) if high is None else high
    found["loss_mean"] = given.loss_mean or algorithm.loss_mean
    found["kl_estimator"] = given.kl_estimator or algorithm.kl_estimator
    return found


def spread_out(values: Iterable[tuple[str, Value]]) -> dict[str, object]:
    """Return values of dotted keys as nested mappings."""
    tree: dict[str, object] = {}
    for key, value in values:
        *parents, last = key.split(".")
        place = tree
        for parent in parents:
            inner = place.setdefault(parent, {})
            assert isinstance(inner, dict), f"{parent} of {key} has a value of its own"
            place = inner
        place[last] = list(value) if isinstance(value, tuple) else value
    return tree


# Launch scripts: variables for what no plan says, then one command with one key a line.


def launch_script(export: Export, start: str, word: Word) -> str:
    """Return a script that starts what an export has written.

    Args:
        start: What stands before the keys.
        word: How a key and its value, quoted already, stand on the command line.
    """
    variables = {each.name: each for each in export.values.values() if isinstance(each, Variable)}
    file, read, words = export.model_file, [], []
    if file is not None:
        variables[file.name] = file
        read, words = [f'source "${{{file.name}}}"', ""], [f'    "${{{MODEL_ARGS}[@]}}" \\']
    lines = [
        "#!/usr/bin/env bash",
        export.headline,
        *(f"# {note}" for note in export.notes),
        "set -euo pipefail",
        "",
        *(line for each in variables.values() for line in _assignment(each)),
        "",
        *read,
        f"{start} \\",
        *words,
        *(f"    {word(key, _quoted(value))} \\" for key, value in export.values.items()),
        '    "$@"',
    ]
    return "\n".join(lines) + "\n"


def as_flag(key: str, value: str) -> str:
    """Return a key and its value as a flag of argparse; a switch has no value."""
    return f"--{key}" if value == "True" else f"--{key} {value}"


def _assignment(variable: Variable) -> tuple[str, str]:
    """Return a comment and the line that sets a variable nobody has set."""
    default = variable.default
    usual = f":-{shlex.quote(default)}" if default is not None else f":?{variable.meaning}"
    return f"# {variable.meaning}", f'{variable.name}="${{{variable.name}{usual}}}"'


def _quoted(value: Value) -> str:
    if isinstance(value, Variable):
        return f'"${{{value.name}}}"'
    if isinstance(value, tuple):
        return " ".join(_quoted(each) for each in value)
    return "null" if value is None else shlex.quote(f"{value}")
