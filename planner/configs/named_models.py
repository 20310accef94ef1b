"""Name the models of a configuration's roles that options say, and the actor's where its path says nothing, by other words."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from rlplan.errors import FileError
from rlplan.files.decoding import text_of
from rlplan.job import Role
from rlplan.planner.configs.models import model_of, own_name
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import MODEL, Settings, ToldModel

# Words of keys whose values are named after the model that is trained: what it writes, is called or is served as.
TELLING: Final = frozenset(
    {"model", "tokenizer", "processor", "template", "output", "save", "export", "hub", "run", "experiment", "exp"}
    | {"trial", "project", "group", "tag", "served", "checkpoint", "checkpoints", "ckpt", "load", "job"}
)  # fmt: skip
# Words of keys whose values may name another model than that, or what is not made by this run.
OF_OTHERS: Final = frozenset(
    {"teacher", "judge", "reward", "rewarder", "rm", "prm", "orm", "verifier", "grader", "scorer", "critic", "draft", "student"}
    | {"genrm", "opd", "embedding", "data", "dataset", "datasets", "files", "file", "url", "eval", "evaluation", "evaluator"}
    | {"val", "validation", "test", "env", "function", "user", "simulator", "search", "retriever", "tool", "tools", "summary"}
    | {"answer", "opponent", "expert", "guide", "speculative", "sampling"}
)  # fmt: skip
# Words beside which a name is of such a model, whatever its key: `teacher_qwen3_32b`, `Skywork-Reward-Llama-3.1-8B`. Not `rm`:
# verl's examples call runs without a reward model `qwen2_7b_function_rm`.
NAMED_OTHERS: Final = frozenset(
    {"teacher", "judge", "reward", "prm", "orm", "verifier", "grader", "embedding", "reranker", "draft", "simulator"}
)  # fmt: skip
# A size among words of a name; one without is too little to be told a model by, unless it is the whole of an id.
SIZE: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])", re.IGNORECASE)
# A comment that has a model where the script has another: `# MODEL_PATH=Qwen/Qwen3-4B`, `# model_name_or_path: ...`.
COMMENTED: Final = re.compile(
    r"^\s*#+\s*(?:export\s+)?(?P<key>[\w.\-]*model[\w.\-]*)\s*[=:]\s*[\"']?(?P<value>[\w./\-]+)",
    re.IGNORECASE,
)
# A family and its generation, as names have them: qwen2.5, qwen3vl, llama-3.1.
FAMILY: Final = re.compile(
    r"(qwen|llama|mi[sx]tral|ministral|gemma|deepseek|phi|glm|internvl|internlm|olmo|smollm|minicpm|kimi|gpt-oss|nemotron|minimax|mimo"
    r"|baichuan|falcon|ernie|hunyuan|granite|exaone|tulu)"
    r"[-_]?(\d+(?:\.\d+)?)?(?![\d.]*[bm](?![a-z]))"
)
# What a path says of a model that reads more than texts: `qwen3vl_sft` is no plain Qwen3.
WITH_IMAGES: Final = ("vl", "omni")
# How many folders above a file are looked at for names.
FOLDERS: Final = 3


def replace_models(settings: Settings, actor: str | None, others: Mapping[Role, str]) -> None:
    """Put models that an option names in the place of those of other roles, and of an actor's that is not known.

    Args:
        actor: The actor's; None where no option says it.
        others: Those of other roles.

    Raises:
        FileError: The framework has no such role.
    """
    flat = settings.flat
    if actor is not None:
        key = settings.key_of("model")
        given = flat.get(key)
        if given is None or given.gaps or given.value is None:
            flat[key] = GivenValue(value=actor, where="--model")
        if given is not None and given.gaps:
            for name, other in models_written_as(settings, given):
                flat[name] = replace(other, value=actor, where="--model", gaps=())
    for role, name in others.items():
        setting = f"{role}_model"
        if setting not in settings.sheet.settings:
            known = ", ".join(
                each for each in get_args(Role) if f"{each}_model" in settings.sheet.settings
            )
            problem = f"is no role whose model {settings.sheet.title} names"
            raise FileError("--model", problem, value=role, allowed=known)
        flat[settings.key_of(setting)] = GivenValue(value=name, where="--model")


def models_written_as(settings: Settings, given: GivenValue) -> Iterator[tuple[str, GivenValue]]:
    """Yield other roles' models that a script writes as the actor's, by a variable that is not known."""
    for role in get_args(Role):
        setting = f"{role}_model"
        if setting in settings.sheet.settings:
            key = settings.key_of(setting)
            other = settings.flat.get(key)
            if other is not None and other.gaps and other.value == given.value:
                yield key, other


def tell_model(settings: Settings) -> None:
    """Keep in settings which models their other words name, where what names the model says none that is known.

    Where these words agree on one, and nothing gives the key a value that can be evaluated, it has that model.
    """
    if MODEL not in settings.sheet.settings or settings.model is not None:
        return
    key, named = settings.key_of(MODEL), ""
    with suppress(FileError):
        named = settings.path(MODEL)
    if named and model_of(settings.sheet.models.get(named, named)) is not None:
        return
    given = settings.flat.get(key)
    private = named or ("" if given is None else str(given.value or ""))
    settings.tells = tuple(_agreeing(settings, key, private))
    if not named and settings.told is not None:
        where = settings.file if given is None else given.where
        settings.flat[key] = GivenValue(value=settings.told.sheet, where=where)


def taken_for(settings: Settings, named: str) -> str | None:
    """Return, in words, for which model one is taken by other words than its own; None where it is not.

    Args:
        named: What the actor's model is called.
    """
    told = settings.told
    if told is None or (named != told.sheet and model_of(named) is not None):
        return None
    what = "nothing at hand says it" if named == told.sheet else f"no sheet is of {named}"
    return (
        f"the model is not known: {what}; it is taken for {told.sheet}, as {told.by} says, and memory and "
        "time are that model's; say --model"
    )


def _agreeing(settings: Settings, key: str, private: str) -> Iterator[ToldModel]:
    """Yield the models that words name, each once, but for those that the model's own path contradicts."""
    found = dict[str, ToldModel]()
    for told in _named(settings, key, private):
        if _goes_with(private, told.sheet):
            found.setdefault(told.sheet, told)
    yield from found.values()


def _named(settings: Settings, key: str, private: str) -> Iterator[ToldModel]:
    """Yield what names a model: the path's own folders, names and folders of the run, the file."""
    for sheet in _sheets_in(private):
        yield ToldModel(sheet=sheet, by=f"its path {private}")
    # A name in a file that this one is laid over is of what that file trains: an example's, whose model is replaced.
    files = {settings.file, "the command line"}
    if key in settings.flat:
        files.add(_file_of(settings.flat[key]))
    for other, given in settings.flat.items():
        if (
            other != key
            and isinstance(given.value, str)
            and _tells(other)
            and _file_of(given) in files
        ):
            for sheet in _sheets_in(given.value):
                yield ToldModel(sheet=sheet, by=f"{other}={given.value} ({given.where})")
    yield from _named_by_file(Path(settings.file))


def _named_by_file(file: Path) -> Iterator[ToldModel]:
    """Yield what a file names a model by: its name, those of the folders above, comments in it."""
    if not file.is_file():
        return
    for part in (file.stem, *file.resolve().parts[-FOLDERS - 1 : -1]):
        for sheet in _sheets_in(part):
            yield ToldModel(sheet=sheet, by=f"the name {part} of the file or its folder")
    for number, line in enumerate(text_of(file, "replace").splitlines(), 1):
        commented = COMMENTED.match(line)
        if commented is not None and _tells(commented["key"]):
            for sheet in _sheets_in(commented["value"]):
                yield ToldModel(sheet=sheet, by=f"a comment ({file}:{number})")


def _file_of(given: GivenValue) -> str:
    """Return the file in which a value is given."""
    return re.sub(r":\d+$", "", given.where)


def _tells(key: str) -> bool:
    """Tell whether a key's value may be named after the model."""
    words = {word for word in re.split(r"[^a-z0-9]+", key.lower()) if word}
    return bool(words & TELLING) and not words & OF_OTHERS


def _sheets_in(value: str) -> Iterator[str]:
    """Yield the sheets of models by the parts of a path or a name that have a size: `qwen2_5_7b` is `qwen2.5-7b`."""
    for part in re.split(r"[/\s]+", value):
        spaced = _with_points(part)
        if NAMED_OTHERS.intersection(re.split(r"[^a-z]+", part.lower())):
            continue
        # Two sizes in one name are of two models, as of a student and its teacher.
        if len({size.lower() for size in _sizes_in(spaced)}) == 1:
            sheet = model_of(spaced)
            if sheet is not None and not sheet.endswith(".json") and _names_one(spaced, sheet):
                yield sheet


def _names_one(name: str, sheet: str) -> bool:
    """Tell whether a name has no other family, and no second generation, beside a sheet's: `qwen3-8b_vs_llama-3.1-8b` has."""
    named, families = set(FAMILY.findall(name.lower())), dict(FAMILY.findall(sheet.lower()))
    generations = [family for family, generation in named if generation]
    return {family for family, _ in named} <= families.keys() and (
        len(generations) == len(set(generations))
    )


def _with_points(name: str) -> str:
    """Return a name with points in its generation, which names of files have as `qwen2_5_vl_7b`."""
    return re.sub(r"(?<=[a-z]\d)_(?=\d(?:_|-))", ".", name, flags=re.IGNORECASE)


def _sizes_in(name: str) -> set[str]:
    """Return the sizes that a name has, as in `4b`."""
    return {"".join(each).lower() for each in SIZE.findall(name.replace("_", "-"))}


def _goes_with(private: str, sheet: str) -> bool:
    """Tell whether the last part of a model's path, as far as it names a family or size, goes with a sheet."""
    own = _with_points(own_name(private).lower())
    sizes, families = _sizes_in(own), dict(FAMILY.findall(own))
    if sizes and not sizes & _sizes_in(sheet):
        return False
    of_sheet = {name: known.replace(".", "") for name, known in FAMILY.findall(sheet.lower())}
    shared = families.keys() & of_sheet.keys()
    if families and not shared:
        return False
    if any(families[each].replace(".", "") not in ("", of_sheet[each]) for each in shared):
        return False
    words = re.split(r"[^a-z]+", own)
    return all(kind in sheet for kind in WITH_IMAGES if kind in words)
