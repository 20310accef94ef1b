"""Teachers that a script of slime or miles serves itself, by SGLang on GPUs beside the training.

Its reward function asks the server for the log-probabilities of prompt and response as soon as that has ended
(rollout/on_policy_distillation.py: reward_func); forecasts ask it behind the last of them.
"""

from dataclasses import replace
from typing import Final

from rlplan.job import Teacher
from rlplan.planner.configs.reading.settings import OFF, Settings
from rlplan.planner.configs.run import RunPool
from rlplan.planner.configs.sizes import served_sizes
from rlplan.planner.plans.trained import TrainerSizes

TEACHER_POOL: Final = "teacher"
# An estimator of slime 0.2 whose teacher gives its log-probabilities with the reward (on_policy_distillation.py).
SERVED_TEACHER: Final = "on_policy_distillation"
# miles' servers of several teachers, by which of them a sample names.
SEVERAL: Final = "opd-teacher-urls"
# Log-probabilities of the student's own likeliest tokens, which miles asks a teacher for.
LIKELIEST: Final = "opd-log-prob-top-k"
ASKED_LATE: Final = "the teacher answers for each response as soon as it has ended, and is forecast behind the last of them"


def asks_a_server(settings: Settings) -> bool:
    """Tell whether a teacher on a server is learnt from."""
    estimated = settings.given(settings.key_of("estimator")) == SERVED_TEACHER
    return estimated or (settings.on("distils") and settings.value("teacher_kind") != "megatron")


def serves(settings: Settings) -> bool:
    """Tell whether the script starts the server of the one teacher that is asked for the sampled tokens."""
    several = settings.given(SEVERAL) is not None
    top = settings.given(LIKELIEST) not in OFF
    return asks_a_server(settings) and settings.is_given("teacher_model") and not (several or top)


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
    teacher, running = Teacher(engine=engine), settings.optional_whole("teacher_running")
    if running is not None:
        teacher = replace(teacher, max_running=running)
    if settings.value("teacher_memory") is not None:
        teacher = replace(teacher, memory_fraction=settings.number("teacher_memory"))
    return teacher
