"""Teachers of verl's on-policy distillation: an engine on a pool of its own, which tells how likely it finds each response.

verl asks it for each response as soon as it has ended (experimental/agent_loop/agent_loop.py: _compute_teacher_logprobs), for
the log-probabilities of prompt and response as an engine's prompt; forecasts ask it behind the last of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from rlplan.files.frozen import FrozenDict
from rlplan.job import Teacher
from rlplan.planner.configs.broken import Broken, Rule, divides, unless
from rlplan.planner.configs.models import parameters_of
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import RunPool
from rlplan.planner.configs.sizes import divided, eager_engine, served_sizes
from rlplan.planner.plans.trained import TrainerSizes

TEACHER_POOL: Final = "teacher"
# What its only teacher is called; a default, which goes where others are named (workers/config/distillation.py).
TEACHERS, ALONE = "distillation.teacher_models", "teacher_model"
# What its engine is cut by, as keys have it.
SIZES: Final = ("tensor_model", "pipeline_model", "expert", "data")
# The loss that compares likeliest tokens; all others estimate the divergence on sampled ones.
OF_LIKELIEST: Final = "forward_kl_topk"
ASKED_LATE: Final = "the teacher answers for each response as soon as it has ended, and is forecast behind the last of them"


def teaches(settings: Settings) -> bool:
    """Tell whether a teacher is learnt from that a job can have: one for all prompts, or several of one layout."""
    known = _stands_for_all(settings) or not _others(settings)
    return settings.on("distils") and known and settings.is_given("teacher_model")


def _others(settings: Settings) -> list[str]:
    """Return the names of teachers that share out prompts between them."""
    keys = settings.has(f"{TEACHERS}.*")
    names = {key.removeprefix(f"{TEACHERS}.").partition(".")[0] for key in keys}
    return sorted(names - {ALONE})


def _stands_for_all(settings: Settings) -> bool:
    """Tell whether one of several teachers' keys are read for all of them."""
    return settings.sheet.settings["teacher_model"].keys[0] != f"{TEACHERS}.{ALONE}.model_path"


def join(settings: Settings) -> None:
    """Read several teachers as one on all of their GPUs: the largest, where all have one layout.

    Each answers for the prompts of its own data sources, on replicas of its own; with as large a share of the responses as of
    the replicas that takes as long as one teacher on all of them.
    """
    names = _others(settings) if settings.on("distils") and not _stands_for_all(settings) else []
    layouts = {_layout(settings, name) for name in names}
    parameters = {name: _parameters(settings, name) for name in names}
    if not names or len(layouts) > 1 or not all(parameters.values()):
        return
    largest = max(names, key=lambda name: parameters[name])
    keys, own = f"{TEACHERS}.{ALONE}.", f"{TEACHERS}.{largest}."
    changed = {
        name: replace(each, keys=tuple(key.replace(keys, own) for key in each.keys))
        for name, each in settings.sheet.settings.items()
        if any(key.startswith(keys) for key in each.keys)
    }
    sheet = settings.sheet
    settings.sheet = replace(sheet, settings=FrozenDict({**sheet.settings, **changed}))
    settings.used |= set(settings.has(f"{TEACHERS}.*"))


def _layout(settings: Settings, name: str) -> tuple[object, ...]:
    """Return the engine of a named teacher and how it is cut, as far as they are given."""
    keys = ("name", *(f"{size}_parallel_size" for size in SIZES))
    return tuple(settings.given(f"{TEACHERS}.{name}.inference.{key}") for key in keys)


def _parameters(settings: Settings, name: str) -> int:
    """Return the parameters of a named teacher; 0 where its model is not known."""
    given = settings.flat.get(f"{TEACHERS}.{name}.model_path")
    return 0 if given is None or given.gaps else parameters_of(given.value)


def _gpus_of(settings: Settings, name: str) -> int | None:
    """Return the GPUs of all replicas of a named teacher; None where a number of them is none."""
    counts: list[object] = [settings.given(f"{TEACHERS}.{name}.num_replicas")]
    for size, setting in (
        ("tensor_model", "teacher_tp"),
        ("pipeline_model", "teacher_pp"),
        ("data", "teacher_dp"),
    ):
        key, usual = (
            f"{TEACHERS}.{name}.inference.{size}_parallel_size",
            settings.sheet.settings[setting].default,
        )
        counts.append(settings.given(key) if key in settings.flat else usual)
    whole = [each for each in counts if isinstance(each, int) and not isinstance(each, bool)]
    return prod(whole) if len(whole) == len(counts) else None


def alone(settings: Settings) -> bool:
    """Tell whether nothing is learnt from but the teacher."""
    return teaches(settings) and settings.value("task_rewards") is False


def compares_likeliest(settings: Settings) -> bool:
    """Tell whether the loss compares likeliest tokens."""
    return settings.word("teacher_loss") == OF_LIKELIEST


def teacher_of(settings: Settings) -> Teacher | None:
    """Return how the run's teacher answers; None without one.

    Raises:
        FileError: It tells of no token.
    """
    if not teaches(settings):
        return None
    settings.value("teacher_top")  # its scripts give it with every loss, and one reads it
    top = settings.whole("teacher_top") if compares_likeliest(settings) else None
    if top is not None and top < 1:
        raise settings.refused("teacher_top", "is no number of tokens", "at least 1")
    return Teacher(
        top_tokens=top,
        engine=eager_engine(settings.word("teacher_engine"), eager=settings.on("teacher_eager")),
        max_running=settings.whole("teacher_running"),
        memory_fraction=settings.number("teacher_memory"),
    )


def teacher_nodes(settings: Settings) -> tuple[int, int]:
    """Return the GPUs of a node of the teacher's pool, and its nodes.

    Raises:
        FileError: It has no GPU.
    """
    per_node, nodes = settings.whole("teacher_gpus_per_node"), settings.whole("teacher_nodes")
    for name, count in (("teacher_nodes", nodes), ("teacher_gpus_per_node", per_node)):
        if count < 1:
            raise settings.refused(name, "leaves the teacher no GPU", "at least 1")
    return per_node, nodes


def teacher_sizes(settings: Settings, pool: RunPool) -> TrainerSizes:
    """Return the sizes of the teacher's engine, replicas of which fill its pool."""
    tp, pp = settings.whole("teacher_tp"), settings.whole("teacher_pp")
    dp = divided(settings, settings.key_of("teacher_tp"), pool.gpus, tp * pp)
    return served_sizes(pool.name, tp=tp, pp=pp, dp=dp, ep=settings.whole("teacher_ep"))


def say_doubts(settings: Settings) -> None:
    """Name what teachers do that is not counted."""
    if settings.on("distils") and not teaches(settings):
        named = _others(settings)
        what = f"teachers that share out prompts ({', '.join(named)})" if named else "its teacher"
        settings.doubt("distils", f"passes of {what}")
    elif teaches(settings) and compares_likeliest(settings):
        what = "the student's own likeliest tokens, which metrics compare with the teacher's"
        settings.leave_out("teacher_top", what)


def notes_of(settings: Settings) -> Iterator[str]:
    """Yield what is assumed of teachers."""
    if teaches(settings):
        yield ASKED_LATE


def guesses_of(settings: Settings) -> Iterator[str]:
    """Yield what is assumed of teachers that share out prompts."""
    names = _others(settings)
    if teaches(settings) and names[1:]:
        yield (
            f"teachers {', '.join(names)} each answer for as large a share of the responses as they have of the replicas, and all are "
            "taken for the largest: teacher.imbalance of the job says otherwise"
        )


def teachers_have_gpus(settings: Settings) -> Iterator[Broken]:
    """Give a teacher's pool GPUs for at least one whole replica."""
    if not settings.on("distils"):
        return
    for name in ("teacher_nodes", "teacher_gpus_per_node"):
        yield from unless(settings.whole(name) > 0, name, "leaves the teacher no GPU", "at least 1")
    gpus = settings.whole("teacher_nodes") * settings.whole("teacher_gpus_per_node")
    ranks = prod(settings.whole(f"teacher_{size}") for size in ("tp", "pp", "dp"))
    apart = bool(_others(settings)) and not _stands_for_all(settings)
    holds = apart or divides(ranks, gpus)
    problem = f"makes replicas of {ranks} GPUs, which do not divide the teacher's {gpus}"
    yield from unless(holds, "teacher_tp", problem, f"divisors of {gpus}")


def teachers_fill_their_pool(settings: Settings) -> Iterator[Broken]:
    """Give teachers that share out prompts replicas that fill their pool together."""
    wanted = [_gpus_of(settings, name) for name in _others(settings)]
    if not (settings.on("distils") and wanted):
        return
    needed = sum(each for each in wanted if each is not None)
    gpus = settings.whole("teacher_nodes") * settings.whole("teacher_gpus_per_node")
    problem = f"are {gpus} GPUs with those of all nodes, and the teachers' replicas want {needed}"
    holds = None in wanted or needed == gpus
    yield from unless(holds, "teacher_gpus_per_node", problem, str(needed))


def teachers_have_a_path(settings: Settings) -> Iterator[Broken]:
    """Name the teacher that is switched on."""
    holds = (
        not settings.on("distils") or bool(_others(settings)) or settings.is_given("teacher_model")
    )
    yield from unless(holds, "teacher_model", "is missing", "a model's path")


def teachers_read_whole_responses(settings: Settings) -> Iterator[Broken]:
    """Let a teacher's engine take the longest prompt with its response, and one token that it writes."""
    if not settings.on("distils"):
        return
    longest = settings.whole("max_prompt") + settings.whole("max_response") + 1
    most = settings.optional_whole("teacher_length")
    holds = most is None or most >= longest
    problem = f"is less than prompt and response of {longest - 1} tokens, and one more"
    yield from unless(holds, "teacher_length", problem, f"at least {longest}")


def likeliest_tokens_come_of_the_engine(settings: Settings) -> Iterator[Broken]:
    """Ask an engine for likeliest tokens that gives them, and as many as it gives."""
    if not (settings.on("distils") and compares_likeliest(settings)):
        return
    engine = settings.word("teacher_engine")
    holds = engine.startswith(("vllm", "sglang"))
    yield from unless(holds, "teacher_engine", "gives no likeliest tokens", "vllm, sglang")
    top, most = settings.whole("teacher_top"), settings.optional_whole("teacher_logprobs")
    holds = most is None or not engine.startswith("vllm") or most >= top
    problem = f"is less than the {top} tokens that the loss compares"
    yield from unless(holds, "teacher_logprobs", problem, f"at least {top}")


def divergences_have_a_gradient(settings: Settings) -> Iterator[Broken]:
    """Learn by a policy gradient from an estimate whose own gradient knows nothing of the teacher."""
    sampled = settings.on("distils") and settings.value("teacher_loss") == "k1"
    problem = "has a gradient without the teacher, where use_policy_gradient is off"
    holds = not sampled or settings.on("teacher_by_gradient")
    yield from unless(holds, "teacher_loss", problem, "k3, or use_policy_gradient=True")


def teachers_have_the_plain_policy_loss(settings: Settings) -> Iterator[Broken]:
    """Weigh a teacher's policy gradient by the plain loss, the only one there is."""
    holds = not settings.on("distils") or settings.value("teacher_policy_loss") == "vanilla"
    yield from unless(holds, "teacher_policy_loss", "is no loss of teachers", "vanilla")


CONFIG: Final = "workers/config/distillation.py"
RULES: Final = (
    Rule(teachers_have_gpus, f"trainer/ppo/v1/trainer_base.py:780, {CONFIG}", since="0.8"),
    Rule(teachers_fill_their_pool, CONFIG, since="0.8"),
    Rule(teachers_have_a_path, CONFIG, since="0.8"),
    Rule(teachers_read_whole_responses, CONFIG, since="0.8"),
    Rule(likeliest_tokens_come_of_the_engine, CONFIG, since="0.8"),
    Rule(divergences_have_a_gradient, CONFIG, since="0.8"),
    Rule(teachers_have_the_plain_policy_loss, CONFIG, since="0.8"),
)
