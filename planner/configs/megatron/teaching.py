"""Teachers that a script of slime or miles serves itself, by SGLang on GPUs beside the training.

Its reward function asks the server for the log-probabilities of prompt and response as soon as that has ended
(rollout/on_policy_distillation.py: reward_func); forecasts ask it behind the last of them. Several teachers of miles each answer
for the prompts that name them.
"""

from dataclasses import replace
from typing import Final

from rlplan.job import Teacher
from rlplan.planner.configs.models import parameters_of
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import OFF, Settings
from rlplan.planner.configs.run import RunPool
from rlplan.planner.configs.sizes import served_sizes
from rlplan.planner.plans.trained import TrainerSizes

TEACHER_POOL: Final = "teacher"
# An estimator of slime 0.2 whose teacher gives its log-probabilities with the reward (on_policy_distillation.py).
SERVED_TEACHER: Final = "on_policy_distillation"
# What stands before the keys of the servers that a script starts: of the last, and of those before it with their number.
SERVER: Final = "server."
# miles' servers of several teachers, by which of them a sample names.
SEVERAL: Final = "opd-teacher-urls"
# Log-probabilities of likeliest tokens that miles asks a teacher for, and whose: the student's own, or others too.
LIKELIEST, WHOSE, OF_STUDENT = "opd-log-prob-top-k", "opd-top-k-strategy", "only-student"
# Servers of which several are.
LEAST_SEVERAL: Final = 2
# By what servers are cut.
CUT: Final = ("teacher_tp", "teacher_pp", "teacher_dp", "teacher_ep")
ASKED_LATE: Final = "the teacher answers for each response as soon as it has ended, and is forecast behind the last of them"
SHARED: Final = (
    "teachers {} each answer for as large a share of the responses as they have of the replicas, and all are taken for the largest: "
    "teacher.imbalance of the job says otherwise"
)


def asks_a_server(settings: Settings) -> bool:
    """Tell whether a teacher on a server is learnt from."""
    estimated = settings.given(settings.key_of("estimator")) == SERVED_TEACHER
    return estimated or (settings.on("distils") and settings.value("teacher_kind") != "megatron")


def serves(settings: Settings) -> bool:
    """Tell whether the script starts the server of the one teacher that is asked, or of several that count as one."""
    several = settings.given(SEVERAL) is not None
    return asks_a_server(settings) and settings.is_given("teacher_model") and not several


def join(settings: Settings) -> None:
    """Read several teachers as one on all of their GPUs: the largest, where the script starts all and they are cut alike."""
    servers = _servers(settings)
    models = {prefix: settings.given(f"{prefix}model_path") for prefix in servers}
    parameters = {prefix: parameters_of(model) for prefix, model in models.items()}
    layouts = {_layout(settings, prefix) for prefix in servers}
    named = settings.given(SEVERAL)
    if (
        named is None
        or not asks_a_server(settings)
        or len(servers) < LEAST_SEVERAL
        or len(layouts) > 1
    ):
        return
    if not all(parameters.values()) or len(servers) != _addresses(named):
        return
    largest = max(servers, key=lambda prefix: parameters[prefix])
    own = {
        f"{SERVER}{key.removeprefix(largest)}": given
        for key, given in settings.flat.items()
        if key.startswith(largest) and (largest != SERVER or not _numbered(key))
    }
    kept = {key: given for key, given in settings.flat.items() if not key.startswith(SERVER)}
    settings.flat = kept | own
    replicas = settings.whole("teacher_dp") * len(servers)
    key = settings.key_of("teacher_dp")
    settings.flat[key] = GivenValue(value=replicas, where=settings.flat[SEVERAL].where)
    del settings.flat[SEVERAL]
    settings.guesses += (SHARED.format(", ".join(map(str, models.values()))),)


def _servers(settings: Settings) -> list[str]:
    """Return what stands before the keys of each server of a model."""
    keys = (key for key in settings.flat if key.startswith(SERVER) and key.endswith("model_path"))
    return [key.removesuffix("model_path") for key in keys]


def _numbered(key: str) -> bool:
    return key.removeprefix(SERVER).partition(".")[0].isdigit()


def _addresses(named: object) -> int:
    """Return how many servers a list of `NAME=URL` names."""
    words = named if isinstance(named, list) else str(named).split()
    return len({str(word).partition("=")[2] for word in words})


def _layout(settings: Settings, prefix: str) -> tuple[object, ...]:
    """Return how a server is cut, as far as it is given."""
    keys = (key for name in CUT for key in settings.sheet.settings[name].keys)
    return tuple(settings.given(f"{prefix}{key.removeprefix(SERVER)}") for key in keys)


def pool_of(settings: Settings) -> RunPool:
    """Return the GPUs of the server.

    Raises:
        FileError: It has none.
    """
    sizes = [settings.whole(name) for name in ("teacher_tp", "teacher_dp", "teacher_pp")]
    if min(sizes) < 1:
        raise settings.refused("teacher_tp", "leaves the teacher no GPU", "at least 1")
    tp, dp, pp = sizes
    return RunPool(name=TEACHER_POOL, gpus=tp * dp * pp, roles=("teacher",))


def sizes_of(settings: Settings) -> TrainerSizes:
    """Return how the server's engine is cut."""
    tp, dp, pp = (settings.whole(name) for name in ("teacher_tp", "teacher_dp", "teacher_pp"))
    return served_sizes(TEACHER_POOL, tp=tp, pp=pp, dp=dp, ep=settings.whole("teacher_ep"))


def teacher_of(settings: Settings, engine: str) -> Teacher | None:
    """Return how the run's teacher answers; None without a server that the script starts.

    Args:
        engine: The sheet of the engine that serves it.
    """
    if not serves(settings):
        return None
    settings.value("reward_server")  # is the teacher's
    teacher = Teacher(engine=engine, top_tokens=_likeliest(settings))
    running = settings.optional_whole("teacher_running")
    if running is not None:
        teacher = replace(teacher, max_running=running)
    if settings.value("teacher_memory") is not None:
        teacher = replace(teacher, memory_fraction=settings.number("teacher_memory"))
    return teacher


def _likeliest(settings: Settings) -> int | None:
    """Return how many likeliest tokens of each position are asked for; those of the teacher are asked of the student's engine too."""
    top = settings.given(LIKELIEST)
    if top in OFF or not isinstance(top, int):
        return None
    settings.used.add(LIKELIEST)
    whose = settings.given(WHOSE) or OF_STUDENT
    if whose != OF_STUDENT:
        settings.doubts[WHOSE] = "passes of the student's engine over tokens that the teacher names"
    return top
