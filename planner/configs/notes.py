"""What an import says beside a job and its plan: what of a configuration was read otherwise than it stands."""

from collections.abc import Iterator, Mapping

from rlplan.job import Job, Role
from rlplan.planner.configs.broken import keys_of_a_copy
from rlplan.planner.configs.models import notes_of_names
from rlplan.planner.configs.reading.composed import OF_MISSING
from rlplan.planner.configs.reading.given import OF_WORK
from rlplan.planner.configs.reading.settings import Keys, Settings
from rlplan.planner.configs.run import Run
from rlplan.profiles.catalog import load_engine

# How many keys a note names.
MOST_NAMED = 8
ONE_BY_ONE = (
    "experts are taken to be computed one by one, as layers of transformers before 5.0 have them "
    "(trainers.actor.experts: one by one)"
)
# verl's issue 3727 (16,783 s where 2,900 s are forecast) and EasyR1's assets/baselines.md (a step of 4,600 s, of 2,950 s).
IN_ONE_TENSOR = "updates of models whose experts are one tensor took 1.6 and 5.7 times the forecast in two published runs"
TOGETHER = (
    "experts are taken to be computed together, as layers of transformers have them from 5.0 on; before, one by one, "
    "updates take several times as long (trainers.actor.experts: one by one)"
)


def _expert_notes(job: Job) -> Iterator[str]:
    """Yield how experts are taken to be computed where layers of transformers are trained: its version decides it."""
    actor = job.architecture("actor")
    assert job.engines.train, "job was not resolved: no engine"
    loop = load_engine(job.engines.train).expert_loop
    if not actor.num_experts or loop is None:
        return
    one_by_one = job.trainer("actor").experts == "one by one"
    yield ONE_BY_ONE if one_by_one else TOGETHER
    if one_by_one and actor.family in loop.stacked:
        yield IN_ONE_TENSOR


def notes_of(
    run: Run,
    settings: Settings,
    keys: Keys,
    sheets: Mapping[Role, tuple[str, str | None]],
    resolved: Job,
) -> Iterator[str]:
    """Yield what is said of a configuration's keys, version, models and experts."""
    for key in settings.has(f"{OF_MISSING}*"):
        yield from (f"{gap.source} {gap.reason}" for gap in settings.flat[key].gaps)
    yield from _of_fork(settings, keys)
    yield from _of_copy(settings)
    yield from _below_the_command(settings)
    if settings.version_reason:
        yield f"{settings.sheet.title} {settings.sheet.version}, {settings.version_reason}"
    if settings.switched and _is_switched(settings, resolved):
        yield f"vLLM's first engine (V0) generates, as {settings.switched} asks for"
    yield from settings.notes
    yield from _of_taken(settings, keys)
    yield from run.notes
    yield from settings.later_names()
    yield from _older_names(settings)
    own = () if settings.told is None else (sheets["actor"],)
    yield from notes_of_names(each for each in sheets.values() if each not in own)
    yield from _expert_notes(resolved)


def _is_switched(settings: Settings, resolved: Job) -> bool:
    """Tell whether the engine that generates is one of those that a script's switch puts in the place of others."""
    engine = resolved.engines.generate or ""
    switches = settings.sheet.engine_switches.values()
    return any(engine.startswith(each) for switch in switches for each in switch.values())


def _of_taken(settings: Settings, keys: Keys) -> Iterator[str]:
    """Yield a note where a program's own defaults count since nothing gives other values."""
    taken = dict.fromkeys(each for key in keys.mapped for each in settings.flat[key].taken)
    if taken:
        one = len(taken) == 1
        yield f"nothing gives what {'has a default' if one else 'have defaults'} in the program: {', '.join(taken)}"


def _of_fork(settings: Settings, keys: Keys) -> Iterator[str]:
    """Yield a note where a start that is not the framework's own is taken as its own, with the keys that it adds."""
    if settings.taken_as:
        note = f"{settings.start} is taken as {settings.sheet.title}'s {settings.taken_as}: its own loop is not known"
        if keys.unknown:
            first = sorted(keys.unknown, key=lambda key: OF_WORK.search(key) is None)
            named = ", ".join(first[:MOST_NAMED])
            rest = (
                f" and {len(keys.unknown) - MOST_NAMED} more"
                if len(keys.unknown) > MOST_NAMED
                else ""
            )
            note += f", nor what it does with {named}{rest}"
        yield note


def _of_copy(settings: Settings) -> Iterator[str]:
    """Yield a note where keys tell that a configuration is of a copy of its framework."""
    own = sorted(keys_of_a_copy(settings), key=lambda key: OF_WORK.search(key) is None)
    if own:
        named, rest = ", ".join(own[:MOST_NAMED]), len(own) - MOST_NAMED
        more = f" and {rest} more" if rest > 0 else ""
        title = settings.sheet.title
        yield f"of a copy of {title} with keys of its own: what it does with {named}{more} is not known"


def _below_the_command(settings: Settings) -> Iterator[str]:
    """Yield a note where words stand below the end of the command."""
    lost = settings.lost
    if lost is not None:
        named = ", ".join(lost.words[:MOST_NAMED]) + (
            ", ..." if len(lost.words) > MOST_NAMED else ""
        )
        are = "is" if len(lost.words) == 1 else "are"
        yield f"the command of line {lost.line} ends at line {lost.ends}: {named} below it {are} no part of it"


def _older_names(settings: Settings) -> Iterator[str]:
    """Yield a note where keys have names of an earlier version, whose steps are taken to be today's."""
    sheet = settings.sheet
    if sheet.versions and sheet.version not in sheet.versions[-1:] and settings.version_reason:
        return  # it is forecast as its own version runs it
    older = [(each.older, key) for key, each in settings.flat.items() if each.older in sheet.older]
    if older:
        first, *others = (f"{name} is now {key}" for name, key in older)
        rest = f", and {len(others)} more are renamed" if others else ""
        yield f"written for an older {sheet.title}, forecast as {sheet.version} runs it: {first}{rest}"
