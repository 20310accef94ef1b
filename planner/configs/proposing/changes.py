"""Changes of a plan that may make it fit or faster, and a configuration typed again with the words by which it has them."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import UserError
from rlplan.job import Role
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import Broken, rules_of
from rlplan.planner.configs.importing import (
    Imported,
    ImportOptions,
    imported_run,
    run_of,
    settings_of,
)
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.laid_over import laid_over
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.reading.sheet import ROLE, ConfigSheet, KeyFile
from rlplan.planner.configs.run import Run, draft_of
from rlplan.planner.configs.sizes import ALL_ON_HOST, ON_HOST
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.facts import Facts, load_facts
from rlplan.profiles.sheets import load_framework
from rlplan.rules.layouts import FULLY_SHARDED, divisors

Assignment = tuple[str, object]
# Keys that are left out together at first, to see which of them change nothing.
AT_ONCE: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RetypedConfiguration:
    """Hold a configuration with the words that gave it, to try more words behind them.

    Attributes:
        words: A script or YAML file and its arguments, or a command line.
        found: The configuration as it is.
        plan: Its plan.
        broken: Rules of its framework that it breaks as it is.
    """

    words: tuple[str, ...]
    options: ImportOptions
    found: Imported
    plan: Plan
    facts: Facts
    broken: frozenset[str]

    @classmethod
    def of(
        cls, words: Iterable[str], options: ImportOptions, found: Imported, plan: Plan, facts: Facts
    ) -> Self:
        """Return a configuration that was read from some words."""
        return cls(
            words=tuple(words),
            options=options,
            found=found,
            plan=plan,
            facts=facts,
            broken=broken_rules(found.settings),
        )

    def arguments(self, assignments: Iterable[Assignment]) -> tuple[str, ...] | None:
        """Return the words that give keys their values; None where no word can: a switch has none for off."""
        found: list[str] = []
        for key, value in assignments:
            words = argument(self.found.settings, key, value)
            if words is None:
                return None
            found += words
        return tuple(found)

    def sketched(self, more: Iterable[str]) -> Plan | None:
        """Return the plan with more words, laid over the values as they were read; None where there is none.

        Files and scripts are not read again, and rules of the framework not asked: a first look, in a tenth of the
        time of `typed`.
        """
        settings = laid_over(self.found.settings, more)
        try:
            return self._plan(settings)[0]
        except UserError:
            return None

    def typed(self, more: Iterable[str]) -> tuple[Plan, Facts] | None:
        """Return the plan that its user gets who types more words behind, with the facts for it.

        Where a script hands no words on, the values are changed in it. None where there is no plan, or where it
        breaks a rule of the framework that the configuration keeps.
        """
        added = tuple(more)
        settings = laid_over(self.found.settings, added)
        keys = laid_over(replace(self.found.settings, flat={}), added).flat
        read = self._read(added)
        if read is not None and all(read.given(key) == settings.given(key) for key in keys):
            settings = read
        try:
            plan, facts, found = self._plan(settings, anew=True)
        except UserError:
            return None
        known = found is not None and not set(keys) & set(found.keys.unknown)
        return (plan, facts) if known and broken_rules(settings) <= self.broken else None

    def hands_on(self, more: Iterable[str]) -> bool:
        """Tell whether words behind it reach the framework: a script may hand none on, and has the keys changed in it."""
        return self._read(tuple(more)) is not None

    def _read(self, added: tuple[str, ...]) -> Settings | None:
        try:
            return settings_of(self.found.settings.sheet.name, (*self.words, *added), self.options)
        except UserError:
            return None

    def _plan(
        self, settings: Settings, *, anew: bool = False
    ) -> tuple[Plan, Facts, Imported | None]:
        """Return a plan; the job is imported again only where more than layouts has changed, or where asked for."""
        run, old = run_of(settings), self.found.run
        alike = replace(run, generate=old.generate, trainers=old.trainers, notes=old.notes) == old
        if alike and not anew:
            draft = draft_of(run, self.found.resolved, self.options.job_path)
            job = self.found.resolved
            return complete(draft, job, self.facts, settings.file), self.facts, None
        found = imported_run(settings, run, self.options)
        facts = load_facts(found.resolved)
        return complete(found.draft, found.resolved, facts, settings.file), facts, found


def by_words_of_files(
    said: Iterable[Assignment], settings: Settings
) -> tuple[Assignment, ...] | None:
    """Return assignments with keys of a framework's own files by the word that names one, as `zero3` of DeepSpeed's.

    No command line takes keys of such a file by themselves. The word is the first whose file holds what is there and what
    is assigned; None where none does. Of a file that is the configuration's own, keys stay as they are. Where no file is
    named, the same setting's key of no file stands for one; None where it has none.
    """
    named = tuple(_outside_of_files(said, settings))
    if None in named:
        return None
    found, flat = tuple(filter(None, named)), settings.flat
    for name, meant in _named_files(settings):
        sections = _sections(meant)
        inside = {key: value for key, value in found if key.startswith(sections)}
        if not inside or flat[name].value not in meant.words:
            continue
        now = {key: given.value for key, given in flat.items() if key.startswith(sections)}
        wanted = {key.removeprefix(meant.prefix): value for key, value in (now | inside).items()}
        words = (word for word, holds in meant.words.items() if wanted.items() <= holds.items())
        word = next(words, None)
        if word is None:
            return None
        found = (*(each for each in found if each[0] not in inside), (name, word))
    return found


@dataclass(frozen=True, slots=True)
class InFile:
    """Hold where a key stands that no command line takes by itself: a file that a configuration names, and its name there."""

    file: str
    name: str

    def words(self, value: object) -> str:
        """Return what somebody is to write there."""
        return f"in {self.file}: {self.name}={typed_value(value)}"


def of_own_files(said: Iterable[Assignment], settings: Settings) -> dict[str, InFile]:
    """Return where keys stand that are of files which a configuration names."""
    return {
        key: InFile(str(settings.flat[name].value), key.removeprefix(meant.prefix))
        for name, meant in _named_files(settings)
        for key, _ in said
        if key.startswith(_sections(meant))
    }


def _named_files(settings: Settings) -> Iterator[tuple[str, KeyFile]]:
    """Yield the keys by which a configuration names files whose keys begin alike, and what these hold."""
    for name, meant in settings.sheet.launch.files.items():
        if name in settings.flat and (meant.prefix or meant.words or _holds(settings, name, meant)):
            yield name, meant


def _holds(settings: Settings, name: str, meant: KeyFile) -> bool:
    """Tell whether sections of a configuration are of a file that it names, and not of another that has them too."""
    named, sections = settings.flat[name], _sections(meant)
    file = Path(str(named.value)).name
    places = {each.where for key, each in settings.flat.items() if key.startswith(sections)}
    return bool(places) and all(file in each or each == named.where for each in places)


def _sections(meant: KeyFile) -> tuple[str, ...]:
    """Return how keys begin that stand in a file: with its prefix, or with the sections that known ones have."""
    if meant.prefix:
        return (meant.prefix,)
    held = (key for each in (*meant.words.values(), *meant.presets.values()) for key in each)
    return tuple(dict.fromkeys(f"{key.partition('.')[0]}." for key in held if "." in key))


def _outside_of_files(
    said: Iterable[Assignment], settings: Settings
) -> Iterator[Assignment | None]:
    """Yield assignments, those of a file that is not there by a key of no file; None where a setting has none."""
    sections = tuple(
        each for meant in settings.sheet.launch.files.values() for each in _sections(meant)
    )
    lost = tuple(
        each for each in sections if not any(key.startswith(each) for key in settings.flat)
    )
    for key, value in said:
        if not key.startswith(lost):
            yield key, value
            continue
        alike = (each.keys for each in settings.sheet.every_setting() if key in each.keys)
        others = (other for keys in alike for other in keys if not other.startswith(sections))
        other = next(others, None)
        yield None if other is None else (other, value)


def broken_rules(settings: Settings) -> frozenset[str]:
    """Return the rules of its framework that a configuration breaks, each with the key that does."""
    return frozenset(what_breaks(settings))


def what_breaks(settings: Settings) -> Mapping[str, Broken]:
    """Return what breaks rules of its framework, by the rule and the key that does."""
    rules = rules_of(settings.sheet.name)
    return {f"{rule.name} {each.key}": each for rule in rules for each in rule.broken(settings)}


def argument(settings: Settings, key: str, value: object) -> tuple[str, ...] | None:
    """Return the words by which a command line gives a key a value; None where it has none for it.

    Names are those of the version whose names the configuration has.
    """
    sheet, given = settings.sheet, settings.flat.get(key)
    older = next((old for old, new in sheet.older.items() if new == key), "")
    flags = sheet.arguments != "hydra"
    has_older = flags and any(each.older for each in settings.flat.values())
    name = older if given is None and has_older and older else settings.called(key)
    if flags:
        if value is True or (value is False and not _has_off(sheet, key)):
            return (f"--{name}",) if value else None
        return f"--{name}", *map(str, value if isinstance(value, list | tuple) else (value,))
    adds = any(fnmatchcase(key, each) for each in sheet.added)
    adds = adds or (sheet.files_are_whole and given is None)
    return (f"{'++' if adds else ''}{name}={typed_value(value)}",)


def _has_off(sheet: ConfigSheet, key: str) -> bool:
    """Tell whether a word says that a switch is off: of the program's own, not of what launches or serves it."""
    launch = sheet.launch
    own = key not in launch.in_front and not key.startswith(tuple(launch.services.values()))
    return sheet.valued_switches and own


def typed_value(value: object) -> str:
    """Return a key's value as words of a command line have it."""
    if value is None:
        return "null"
    value = list(value) if isinstance(value, tuple) else value
    return str(value).lower() if isinstance(value, bool) else str(value)


GENERATE, UPDATE = "actor.generate", "actor.update"
MOST_MEMORY, LEAST_MEMORY, MEMORY_STEP = 0.9, 0.2, 0.1
# Of each setting so many other values are looked at, from a little less to the least.
MOST_VALUES: Final = 4
# Megatron-Core 0.16 (transformer/transformer_config.py) takes `full` only with how, and of how many layers.
WHOLE_LAYERS: Final[tuple[Assignment, ...]] = (
    ("recompute_method", "uniform"),
    ("recompute_num_layers", 1),
)
OFFLOADED: Final = "offload"
GRANULARITY: Final = "recompute_granularity"

Changes = dict[str, dict[str, Any]]
# Values of one setting, from the mildest change to the strongest.
Lever = tuple[Changes, ...]


def faster(plan: Plan) -> Iterator[Changes]:
    """Yield changes of one setting by which plans are often faster."""
    yield from _of_generation(plan)
    yield from _of_training(plan)


def _of_generation(plan: Plan) -> Iterator[Changes]:
    generate = plan.tasks[GENERATE]
    if generate.tp > 1 and generate.ep == 1:
        yield {GENERATE: {"tp": generate.tp // 2}}
    yield {GENERATE: {"max_running": generate.max_running * 4}}
    if generate.memory_fraction < MOST_MEMORY:
        more = min(MOST_MEMORY, round(generate.memory_fraction + 2 * MEMORY_STEP, 2))
        yield {GENERATE: {"memory_fraction": more}}
    if generate.dp % 2 == 0 and generate.ep == 1:
        yield {GENERATE: {"tp": generate.tp * 2}}


def _of_training(plan: Plan) -> Iterator[Changes]:
    """Yield changes of one setting of the actor's training."""
    update, passes = plan.tasks[UPDATE], _passes(plan, "actor")
    # A core of attention computed again takes time and, by a fused kernel, spares nothing.
    parts = ("none", "full") if update.recompute == "attention" else ("none", "selective")
    others = ("full",) if update.recompute == "none" else parts
    for kind in others:
        if kind in load_engine(update.engine).recompute_modes:
            yield {UPDATE: {"recompute": kind}}
    yield from _batches(plan)
    yield {name: {"offload": not update.offload} for name in passes}
    if update.ep > 1:
        return
    for size in ("pp", "cp", "tp"):
        if getattr(update, size) % 2 == 0:
            yield {name: {size: getattr(update, size) // 2} for name in passes}
    if update.dp % 2 == 0:
        yield {name: {"tp": update.tp * 2} for name in passes}


def _batches(plan: Plan) -> Iterator[Changes]:
    """Yield larger, smaller and packed micro-batches, each of one pass."""
    update, longest = plan.tasks[UPDATE], plan.job.workload.longest_sequence_tokens
    yield from _packed(plan, max(longest, update.micro_batch * longest // 2) * 2)
    for name in _all_passes(plan):
        layout = plan.tasks[name]
        if layout.token_budget is None:
            yield {name: {"micro_batch": layout.micro_batch * 2}}
        else:
            yield {name: {"token_budget": layout.token_budget * 2}}
    if update.token_budget is None and update.micro_batch > 1:
        yield {UPDATE: {"micro_batch": update.micro_batch // 2}}
    elif update.token_budget is not None and update.token_budget // 2 >= longest:
        yield {UPDATE: {"token_budget": update.token_budget // 2}}


def _packed(plan: Plan, tokens: int) -> Iterator[Changes]:
    """Yield token budgets in place of numbers of sequences, in all passes that trainers compute without padding."""
    counted = [
        name
        for name in _all_passes(plan)
        if plan.tasks[name].token_budget is None
        and load_engine(plan.tasks[name].engine).padding == "none"
    ]
    if UPDATE not in counted:
        return
    budgets = {name: _whole(tokens, plan.tasks[name]) for name in counted}
    yield {name: {"micro_batch": 1, "token_budget": size} for name, size in budgets.items()}


def smaller(plan: Plan, full: Collection[str]) -> Iterator[Lever]:
    """Yield what may make a plan fit: settings with their other values, the mildest change first.

    Those that cost least time stand first; of each kind, those of single passes or roles before that of all.

    Args:
        full: Tasks, or syncs of weights, during which a pass's own tensors are too much.
    """
    passes, longest = _all_passes(plan), plan.job.workload.longest_sequence_tokens
    yield from _each_and_all(tuple(_smaller_batches(name, plan)) for name in passes if name in full)
    if any(name in full for name in passes):
        halves = (2 * longest, longest)
        yield tuple(each for tokens in halves for each in _packed(plan, tokens))
    updates = [name for name in passes if name.endswith(".update") and name in full]
    yield from _each_and_all(tuple(_recomputed(name, plan)) for name in updates)
    yield from _engine_sizes(plan.tasks[GENERATE])
    roles = dict.fromkeys(name.partition(".")[0] for name in passes)
    of_roles = [_role_sizes(plan, _passes(plan, role)) for role in roles]
    for kind in of_roles[0]:
        yield from _each_and_all(sizes.get(kind, ()) for sizes in of_roles)


def _each_and_all(levers: Iterable[Lever]) -> Iterator[Lever]:
    """Yield levers of one kind, and then all of them together."""
    known = [lever for lever in levers if lever]
    yield from known
    if len(known) > 1:
        most = max(map(len, known))
        yield tuple(
            dict(item for lever in known for item in lever[min(at, len(lever) - 1)].items())
            for at in range(most)
        )


def _recomputed(name: str, plan: Plan) -> Iterator[Changes]:
    layout = plan.tasks[name]
    if layout.recompute in ("none", "attention", "selective"):
        stronger = ("selective", "full")[layout.recompute == "selective" :]
        modes = load_engine(layout.engine).recompute_modes
        yield from ({name: {"recompute": kind}} for kind in stronger if kind in modes)


def _smaller_batches(name: str, plan: Plan) -> Iterator[Changes]:
    layout, longest = plan.tasks[name], plan.job.workload.longest_sequence_tokens
    if layout.token_budget is None:
        below = divisors(layout.micro_batch)[:-1][::-1]
        for size in (*below[: MOST_VALUES - 1], *below[MOST_VALUES - 1 :][-1:]):
            yield {name: {"micro_batch": size}}
        return
    least, budget = _whole(longest, layout), layout.token_budget
    halves = (_whole(budget // 2**power, layout) for power in range(1, MOST_VALUES))
    for size in dict.fromkeys((*(half for half in halves if half > least), least)):
        if size < budget:
            yield {name: {"token_budget": size}}


def _engine_sizes(generate: TaskPlan) -> Iterator[Lever]:
    """Yield smaller and larger shares for the engine, fewer sequences at a time, and more ranks for a copy."""
    steps = range(1, MOST_VALUES + 1)
    shares = [round(generate.memory_fraction - MEMORY_STEP * step, 2) for step in steps]
    yield tuple({GENERATE: {"memory_fraction": each}} for each in shares if each >= LEAST_MEMORY)
    shares = [round(generate.memory_fraction + MEMORY_STEP * step, 2) for step in steps]
    yield tuple({GENERATE: {"memory_fraction": each}} for each in shares if each <= MOST_MEMORY)
    fewer = (generate.max_running // 4, generate.max_running // 16)
    yield tuple({GENERATE: {"max_running": each}} for each in fewer if each)
    if generate.ep == 1:
        sizes = (generate.tp * factor for factor in (2, 4) if generate.dp % factor == 0)
        yield tuple({GENERATE: {"tp": size}} for size in sizes)


def _role_sizes(plan: Plan, names: tuple[str, ...]) -> dict[str, Lever]:
    """Return off-loading, sharding and more model parallelism of one role's passes, by setting."""
    first = plan.tasks[names[-1]]
    stages = load_engine(first.engine).zero_stages
    shards = first.zero < FULLY_SHARDED in stages and first.dp > 1
    factors = [factor for factor in (2, 4, 8) if first.dp % factor == 0 and first.ep == 1]

    def lever(setting: str, values: Iterable[object]) -> Lever:
        return tuple({name: {setting: value} for name in names} for value in values)

    return {
        "offload": lever("offload", [] if first.offload else [True]),
        "zero": lever("zero", [FULLY_SHARDED] if shards else []),
        "shard_ranks": lever("shard_ranks", [] if first.shard_ranks is None else [None]),
        "cp": lever("cp", (first.cp * factor for factor in factors)),
        "tp": lever("tp", (first.tp * factor for factor in factors)),
        "pp": lever("pp", (first.pp * factor for factor in factors)),
    }


def on_host(plan: Plan) -> Iterator[Lever]:
    """Yield what makes a plan fit where little else does, and makes updates several times as long: states on the host."""
    learns = [name.partition(".")[0] for name in _all_passes(plan) if name.endswith(".update")]
    for option, value in ALL_ON_HOST.items():
        yield from _each_and_all(_on_host(role, option, value, plan) for role in learns)


def _on_host(role: str, option: str, value: object, plan: Plan) -> Lever:
    """Return that a role's states live on the host, where they do not."""
    now = plan.job.trainer(role)
    lies_there = now.host_states or getattr(now, option) == value
    return () if lies_there else ({f"{role}.update": {option: value}},)


def _whole(tokens: int, layout: TaskPlan) -> int:
    """Return tokens that ranks of a copy share out without a rest."""
    ranks = layout.cp * layout.tp
    return math.ceil(tokens / ranks) * ranks


def _passes(plan: Plan, role: Role | str) -> tuple[str, ...]:
    """Return the passes of one role that a trainer computes."""
    return tuple(name for name in _all_passes(plan) if name.startswith(f"{role}."))


def _all_passes(plan: Plan) -> tuple[str, ...]:
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    return tuple(task.name for task in tasks if task.stage_kind.engine == "train")


def may_follow(assignment: Assignment, found: Imported) -> bool:
    """Tell whether a key may be left out where another gives its value.

    Files that are whole have every key. How layers are computed again goes with that they are, and states of an
    optimizer leave the GPUs by a key of their own.
    """
    key, sheet = assignment[0], found.settings.sheet
    alone = (OFFLOADED, *(name for name, _ in WHOLE_LAYERS))
    ends = key.replace("-", "_").endswith(alone)
    return not (sheet.files_are_whole or key in found.settings.flat or ends)


def assignments(changes: Changes, plan: Plan, found: Imported) -> tuple[Assignment, ...] | None:
    """Return a change in a configuration's keys; None where it has none for it."""
    said: dict[str, object] = {}
    for name, fields in changes.items():
        for field, value in fields.items():
            if field == "micro_batch" and "token_budget" in fields:
                continue
            words = (
                _of_engine(field, value, plan, found)
                if name == GENERATE
                else _of_trainer(name, field, value, plan, found)
            )
            if words is None:
                return None
            said |= dict(words)
    return tuple(said.items()) or None


Found = tuple[Assignment, ...] | None


def _of_engine(field: str, value: object, plan: Plan, found: Imported) -> Found:
    """Return a field of generation by the configuration's keys, if there are any."""
    settings, run = found.settings, found.run
    setting = {"max_running": "running", "memory_fraction": "memory"}.get(field, field)
    for each in (f"{run.rollout}_{setting}", f"rollout_{setting}", field):
        if each in settings.sheet.settings:
            said = [(settings.key_of(each), value)]
            if field == "tp" and isinstance(value, int) and "engines" in settings.sheet.settings:
                generate = plan.tasks[GENERATE]
                said.append((settings.key_of("engines"), generate.dp * generate.tp // value))
            return tuple(said)
    return None


def _of_trainer(name: str, field: str, value: object, plan: Plan, found: Imported) -> Found:
    """Return a field of a trainer's pass by the configuration's keys, if there are any."""
    settings, role = found.settings, name.partition(".")[0]
    if role not in settings.sheet.roles:
        return None
    own = settings.of(found.run.trainer, role)
    if field in ("micro_batch", "token_budget") and isinstance(value, int):
        return _of_batches(name, field, value, plan, own)
    if field == "recompute":
        return _of_recomputation(value, own)
    if field == "offload":
        return _of_offloading(value, own)
    if field in ON_HOST:
        return _of_host(field, value, own)
    if field == "shard_ranks" and field in own.names:
        return ((own.key_of(field), -1 if value is None else value),)
    return ((own.key_of(field), value),) if field in own.names else None


def _of_offloading(value: object, own: RoleSettings) -> Found:
    settings = own.settings
    for each in (f"{own.role}_offload", "trainer_sleeps"):
        if each in settings.sheet.settings:
            return ((settings.key_of(each), value),)
    sizes = ("param_offload", "optimizer_offload")[: 1 if own.role == "reference" else 2]
    known = [each for each in sizes if each in own.names] or [
        each for each in ("cpu_offload",) if each in own.names
    ]
    return tuple((own.key_of(each), value) for each in known) or None


def _of_host(option: str, value: object, own: RoleSettings) -> Found:
    """Return what keeps states on the host, with how much of them where a key says that."""
    size = ON_HOST[option]
    if size not in own.names:
        return None
    said: list[Assignment] = [(own.key_of(size), own.word_for(size, meant=True))]
    if option == "host_optimizer" and "host_fraction" in own.names:
        said.append((own.key_of("host_fraction"), value))
    if not own.settings.counts(own.key_of(size)):
        # It is another kind of the trainer that has it: the one that exports write.
        sheet = own.settings.sheet
        fixed = sheet.trainers[own.trainer].fixed.items()
        said += [(key.replace(ROLE, sheet.roles[own.role]), each) for key, each in fixed]
    return tuple(said)


def _of_recomputation(value: object, own: RoleSettings) -> Found:
    """Return what is computed again by a key of how finely, or by one of whether at all."""
    settings = own.settings
    trainer, known = settings.sheet.trainers[own.trainer], settings.sheet.settings
    if trainer.recompute and value not in trainer.recompute:
        return None
    value = "selective" if value == "attention" else value
    recomputes, finely = value != "none", "granularity" in own.names
    if "checkpoints" in own.names:
        said: list[Assignment] = [(own.key_of("checkpoints"), recomputes)]
        if finely and recomputes and own.value("granularity") != value:
            said.append((own.key_of("granularity"), value))
        return tuple(said)
    if finely:
        key = own.key_of("granularity")
        # Flags of argparse have dashes where keys of files have underscores.
        spelt = GRANULARITY.replace("_", "-") if "-" in key else GRANULARITY
        whole = WHOLE_LAYERS if value == "full" and key.endswith(spelt) else ()
        sign = "-" if "-" in key else "_"
        # Where something is repeated unless a key says otherwise, none is a word of its own.
        nothing = None if trainer.sizes["granularity"].default is None else "none"
        beside = ((key.removesuffix(spelt) + each.replace("_", sign), said) for each, said in whole)
        return ((key, value if recomputes else nothing), *beside)
    name = f"{own.role}_checkpoints"
    name = name if name in known else "checkpoints"
    return ((settings.key_of(name), recomputes),) if name in known else None


def _of_batches(name: str, field: str, value: int, plan: Plan, own: RoleSettings) -> Found:
    """Return the size of a pass's micro-batches by its own key, or by that of the pass which it follows."""
    layout = plan.tasks[name]
    infers = not name.endswith(".update")
    if field == "micro_batch":
        return _of_sequences(infers, value, layout, own)
    if load_framework(plan.job.framework).whole_budgets:
        return _of_longest(infers, value, plan, layout, own)
    packs = "packs" in own.names and not own.on("dynamic")
    size = "packed_tokens" if packs else "token_budget"
    each = _size_of_pass(size, own) if infers else size if size in own.names else None
    if each is None:
        return None
    switch = _switch(infers, layout, own, "packs" if packs else "dynamic")
    if switch is None:
        return None
    follows = infers and layout.token_budget is None and _follows(each, own)
    if follows:
        return switch
    return (*switch, (_key(each, own), value // _ranks(each, layout, own)))


def _of_longest(
    infers: bool, budget: int, plan: Plan, layout: TaskPlan, own: RoleSettings
) -> Found:
    """Return a token budget by a key that counts the longest sequences in it; None where it holds a part of one."""
    sequences, left = divmod(budget, plan.job.workload.longest_sequence_tokens)
    size = _of_sequences(infers, sequences, layout, own)
    switch = _switch(infers, layout, own, "dynamic")
    if switch is None or size is None or left or not sequences:
        return None
    return (*switch, *size)


def _switch(infers: bool, layout: TaskPlan, own: RoleSettings, size: str) -> Found:
    """Return what switches token budgets on for a pass, as far as that does not follow the actor's update."""
    if layout.token_budget is not None:
        return ()
    if size not in own.names:
        return None
    settings = own.settings
    if infers and own.role == "actor" and "infer_dynamic" in settings.sheet.settings:
        given = settings.given(settings.key_of("infer_dynamic")) is not None
        return ((settings.key_of("infer_dynamic"), True),) if given else ()
    if own.role != "actor" and not own.is_given(size):
        return ()
    return ((own.key_of(size), True),)


def _of_sequences(infers: bool, value: int, layout: TaskPlan, own: RoleSettings) -> Found:
    """Return the sequences of a micro-batch, of one GPU or of all, as the configuration counts them."""
    each = _size_of_pass("micro_batch", own) if infers else "micro_batch"
    if each is None or (not infers and each not in own.names):
        return None
    beside = _against(each, value, layout, own)
    if beside is None:
        return None
    whole = each.replace("micro_batch", "global_micro_batch")
    if _is_known(whole, own) and _given(whole, own) and not _given(each, own):
        return ((_key(whole, own), value * layout.gpus),)
    return ((_key(each, own), value), *beside)


def _against(size: str, value: int, layout: TaskPlan, own: RoleSettings) -> Found:
    """Return the settings that keep a step's batch as it is where micro-batches change; None where none do."""
    settings, found = own.settings, list[Assignment]()
    for name in settings.sheet.trainers[own.trainer].against.get(size, ()):
        now = settings.optional_whole(name)
        if now is None:
            continue
        if now * layout.micro_batch % value:
            return None
        found.append((settings.key_of(name), now * layout.micro_batch // value))
    return tuple(found)


def _size_of_pass(size: str, own: RoleSettings) -> str | None:
    """Return the name of the size that a pass without an update has for itself; None where it has none.

    A reference with keys of its own has one pass, whose size is that of its update's name.
    """
    actor = own.settings.of(own.trainer, "actor")
    if own.role == "reference" and size in own.names and own.key_of(size) != actor.key_of(size):
        return size
    return f"infer_{size}" if _is_known(f"infer_{size}", own) else None


def _is_known(size: str, own: RoleSettings) -> bool:
    """Tell whether a role has a size, by a key of its own or by one of all roles that have no keys of their own."""
    if size in own.names:
        return True
    actor = own.settings.of(own.trainer, "actor")
    if "micro_batch" not in own.names:
        return False
    shares = own.key_of("micro_batch") == actor.key_of("micro_batch")
    return shares and size in own.settings.sheet.settings


def _is_own(size: str, own: RoleSettings) -> bool:
    """Tell whether a role has a size by a key of its own; the actor's passes may have keys of the rollout's."""
    of_all = own.role == "actor" and size in own.settings.sheet.settings
    return size in own.names and not of_all


def _key(size: str, own: RoleSettings) -> str:
    return own.key_of(size) if _is_own(size, own) else own.settings.key_of(size)


def _given(size: str, own: RoleSettings) -> bool:
    return own.settings.given(_key(size, own)) is not None


def _follows(size: str, own: RoleSettings) -> bool:
    """Tell whether a pass takes the size of the actor's update where it is given none of its own."""
    if _given(size, own):
        return False
    settings = own.settings.sheet.settings
    if not _is_own(size, own):
        return bool(settings[size].follows)
    return own.role in own.settings.sheet.role_follows


def _ranks(size: str, layout: TaskPlan, own: RoleSettings) -> int:
    """Return of how many ranks together a plan counts the tokens of which a key counts one's."""
    if own.settings.sheet.trainers[own.trainer].tokens_of_all_ranks:
        return 1
    value = own.settings.given(_key(size, own))
    if layout.token_budget and isinstance(value, int) and layout.token_budget % value == 0:
        return layout.token_budget // value
    return layout.cp


def needed_assignments(
    said: tuple[Assignment, ...], typed: RetypedConfiguration
) -> tuple[Assignment, ...]:
    """Return assignments without those that leave the run as it is, break no more rules and make nothing more doubtful."""
    wanted, kept = _run_with(said, typed), said
    for size in (AT_ONCE, 1):
        for at in range(0, len(said), size):
            part = said[at : at + size]
            fewer = tuple(each for each in kept if each not in part)
            if fewer != kept and wanted is not None and _run_with(fewer, typed) == wanted:
                kept = fewer
        said = kept
    return kept


def _run_with(
    said: tuple[Assignment, ...], typed: RetypedConfiguration
) -> tuple[Run, frozenset[str], frozenset[str]] | None:
    """Return what a configuration runs with more assignments, the rules that it breaks, and keys that it does not count; None where it runs nothing."""
    spoken = {each: argument(typed.found.settings, *each) for each in said}
    given = [word for words in spoken.values() for word in words or ()]
    settings = replace(laid_over(typed.found.settings, given), doubts={})
    for (key, value), words in spoken.items():
        if words is None:  # a switch that is off: no word says it, its place in a text does
            settings.flat[key] = GivenValue(value=value, where=settings.file)
    try:
        found = run_of(settings)
    except UserError:
        return None
    found = replace(found, notes=(), guesses=(), assumed_pools=())
    return found, broken_rules(settings), frozenset(settings.doubts)
