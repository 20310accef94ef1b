"""Turn a job as a user writes it into one that stands alone: names and files become values."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import (
    JOB_VERSION,
    Engines,
    Job,
    Pretrain,
    Rewards,
    Speculation,
    Teacher,
    WeightSync,
)
from rlplan.models import CONFIG_FILE, ModelArchitecture
from rlplan.profiles.analytic.efficiencies import architecture_names
from rlplan.profiles.jobs.checks import (
    JobPlace,
    check_adapters,
    check_architectures,
    check_cluster,
    check_images,
    check_importance,
    check_kv_offload,
    check_lengths,
    check_precision,
    check_prefill,
    check_roles,
    check_shared_prompts,
    check_workload,
    weights_of_models,
)
from rlplan.profiles.jobs.config.reading import cached_config, read_hf_config
from rlplan.profiles.jobs.environments import (
    FIELD,
    check_environments,
    check_host_cores,
    with_traces_read,
)
from rlplan.profiles.jobs.logged_lengths import with_logged_lengths
from rlplan.profiles.jobs.sampling import sampling_of
from rlplan.profiles.jobs.traces import read_trace
from rlplan.profiles.sheets import (
    canonical_name,
    device_names,
    engine_names,
    load_engine,
    load_framework,
    load_model,
    model_names,
    nearest_models,
    on_usual_nodes,
    sheet_names,
    sheet_of,
)
from rlplan.sheets import DeviceSheet
from rlplan.workload import Environment, Evaluation, Lengths, Texts, TraceFile, Workload

# The engines that a job gets when it names none: on CPU what this project itself runs, on GPU what
# RL frameworks commonly run.
_USUAL_ENGINES = {
    "cpu": Engines(train="torch-tp-dp", generate="torch-static"),
    "gpu": Engines(train="megatron-core", generate="vllm"),
}


def usual_engines(kind: Literal["cpu", "gpu"]) -> Engines:
    """Return the engines that a job on devices of this kind gets when it names none."""
    return _USUAL_ENGINES[kind]


def load_job(path: Path, *, passes: bool = False) -> Job:
    """Return the job of a file, resolved.

    Args:
        passes: As `resolve_job` has it.

    Raises:
        FileError: The file is missing, broken or of another version, or a field is wrong.
    """
    data = load_yaml(path)
    check_version(data, JOB_VERSION, str(path), "job")
    return resolve_job(decode(Job, data, str(path)), path.parent, file=str(path), passes=passes)


def resolve_job(
    job: Job, folder: Path, *, file: str | None = None, prefix: str = "", passes: bool = False
) -> Job:
    """Return the job with architectures for names, distributions for traces and logs, and nothing left to default.

    A relative `prompts_file`, tokenizer or reward file becomes absolute, so that a plan runs from
    any folder. A resolved job resolves to itself.

    Args:
        folder: What paths in the job are relative to: the folder of its file.
        file: Name of the file for messages.
        prefix: Dotted path of the job inside the file, with a final dot.
        passes: Whether its plan lays out the pass for old log-probabilities: then a framework that may leave it out
            runs it, where the job does not say.

    Raises:
        FileError: A name or file is not known, or parts of the job contradict each other.
    """
    place = JobPlace(file=file or f"job {job.name!r}", prefix=prefix)
    check_roles(job, place)
    work = with_logged_lengths(_with_traces_read(job, folder, place), place)
    job = replace(job, workload=work)
    work = replace(work, texts=_texts(job, folder, place))
    job = replace(job, workload=work, evaluation=_evaluation(job, folder, place))
    check_workload(job, place)
    check_environments(job, place)
    architectures = {
        role: _architecture(f"models.{role}", model, folder, place)
        for role, model in job.models.items()
    }
    job = replace(
        job, models=FrozenDict(architectures), weights=weights_of_models(job, folder, place)
    )
    check_architectures(job, place)
    check_images(job, place)
    check_kv_offload(job, place)
    check_prefill(job, place)
    check_shared_prompts(job, place)
    check_adapters(job, place)
    job = replace(
        job,
        speculation=_speculation(job, folder, place),
        rewards=_judge(job, folder, place),
        teacher=_teacher(job, place),
    )
    job = _as_its_framework_does(job, place, passes=passes)
    check_importance(job, place)
    job = _on_devices(job, folder, place)
    return replace(
        job,
        prompts_file=_file(job.prompts_file, "prompts_file", folder, place, folders=True),
        tokenizer=_local(job.tokenizer, folder),
        rewards=_rewards(job.rewards, folder, place),
        pretrain=_pretrain(job.pretrain, folder, place),
    )


def _as_its_framework_does(job: Job, place: JobPlace, *, passes: bool) -> Job:
    """Return the job with what it leaves open taken from its framework's sheet."""
    name, known = canonical_name("frameworks", job.framework), sheet_names("frameworks")
    if name not in known:
        raise place.unknown("framework", "framework", job.framework, known)
    sheet = load_framework(name)
    engines, own, sync, rewards = job.engines, sheet.engines, job.weight_sync, job.rewards
    train = engines.train or own.train
    generate = engines.generate or sheet.newest_engine or own.generate
    if rewards is not None and rewards.streamed is None and sheet.streams_rewards:
        rewards = replace(rewards, streamed=True)
    usual = "engine" if _reuses(job, sheet) and not passes else sheet.old_log_prob
    return replace(
        job,
        framework=name,
        rewards=rewards,
        engines=replace(engines, train=train, generate=generate),
        old_log_prob=job.old_log_prob or usual,
        dynamic_sampling=sampling_of(job, sheet, place),
        weight_sync=WeightSync(
            shared_pool=sync.shared_pool or sheet.weight_sync.shared_pool,
            between_pools=sync.between_pools or sheet.weight_sync.between_pools,
        ),
    )


def _reuses(job: Job, sheet: FrameworkSheet) -> bool:
    """Tell whether a job's updates take their own log-probabilities for the old ones: as if the engine gave them."""
    once = job.workload.updates * job.workload.epochs == 1
    learns = job.hyperparameters
    place = learns.kl_in or load_algorithm(job.algorithm).kl_in
    penalised = place == "reward" and learns.kl_coefficient > 0
    capped = learns.importance_cap is not None
    return job.algorithm in sheet.reuses_log_probs and once and not penalised and not capped


def _read_from_trace(field: str, lengths: Lengths, folder: Path, place: JobPlace) -> Lengths:
    """Return lengths, those of a trace read from its file."""
    if not isinstance(lengths, TraceFile):
        return lengths
    found = _file(lengths.trace, f"{field}.trace", folder, place)
    assert found is not None
    return read_trace(lengths, Path(found))


def _evaluation(job: Job, folder: Path, place: JobPlace) -> Evaluation | None:
    """Return the job's evaluation with distributions for its lengths.

    Raises:
        FileError: There are none, or none of which a log prints such figures; the field is named.
    """
    asked, work = job.evaluation, job.workload
    if asked is None:
        return None
    given = {
        name: lengths
        for name in ("prompt_tokens", "response_tokens")
        if (lengths := getattr(asked, name)) is not None
    }
    prompts = asked.prompts or work.prompts
    work = replace(work, prompts=prompts, samples_per_prompt=asked.samples_per_prompt)
    found = _resolved_lengths("evaluation", given, work, folder, place)
    return replace(
        asked,
        prompt_tokens=found.get("prompt_tokens"),
        response_tokens=found.get("response_tokens"),
    )


def _texts(job: Job, folder: Path, place: JobPlace) -> Texts | None:
    """Return the texts beside a job's responses with a distribution for their lengths.

    Raises:
        FileError: Its algorithm learns from none, or what it generates is more than responses that all are learnt from.
    """
    work, field = job.workload, "workload.texts"
    if work.texts is None:
        return None
    if load_algorithm(job.algorithm).advantage != "none":
        problem = f"are no samples of the policy's, and {job.algorithm} learns from those"
        raise place.error(field, problem, allowed="of algorithm on-policy-distillation alone")
    if work.environments:
        raise place.error(field, "are no episodes", allowed="none, with workload.environments")
    for name in work.begun_beyond:
        problem = (
            "is of a workload whose responses are all generated, and workload.texts says otherwise"
        )
        raise place.error(f"workload.{name}", problem, allowed="1")
    if work.texts.response_tokens is None:
        return work.texts
    given: dict[str, Lengths] = {"response_tokens": work.texts.response_tokens}
    found = _resolved_lengths(field, given, work, folder, place)
    return replace(work.texts, response_tokens=found["response_tokens"])


def _resolved_lengths(
    field: str, given: dict[str, Lengths], work: Workload, folder: Path, place: JobPlace
) -> dict[str, Lengths]:
    """Return the lengths that a field of the job gives, as distributions, by the names that the workload's have.

    Args:
        work: In which they stand.

    Raises:
        FileError: There are none, or none of which a log prints such figures; the field is named.
    """
    read = {
        name: _read_from_trace(f"{field}.{name}", lengths, folder, place)
        for name, lengths in given.items()
    }
    for name, lengths in read.items():
        check_lengths(f"{field}.{name}", lengths, place)
    try:
        cut = with_logged_lengths(replace(work, **read), place)  # type: ignore[arg-type]
    except FileError as error:
        at = (error.field or "").removeprefix(place.prefix).replace("workload.", f"{field}.", 1)
        raise place.error(at, error.problem, value=error.value, allowed=error.allowed) from None
    return {name: getattr(cut, name) for name in read}


def _with_traces_read(job: Job, folder: Path, place: JobPlace) -> Workload:
    def read(field: str, lengths: Lengths) -> Lengths:
        return _read_from_trace(field, lengths, folder, place)

    return replace(
        job.workload,
        prompt_tokens=read("workload.prompt_tokens", job.workload.prompt_tokens),
        response_tokens=read("workload.response_tokens", job.workload.response_tokens),
        environments=_with_sources(
            with_traces_read(job.workload.environments, read, place), folder, place
        ),
    )


def _with_sources(
    environments: tuple[Environment, ...], folder: Path, place: JobPlace
) -> tuple[Environment, ...]:
    """Return environments with absolute paths of their files; built-in ones and Gymnasium's have plain names."""
    return tuple(
        replace(each, source=_function(each.source, f"{FIELD}.{at}.source", folder, place))
        for at, each in enumerate(environments)
    )


def _speculation(job: Job, folder: Path, place: JobPlace) -> Speculation | None:
    """Return how tokens are guessed ahead, with the architecture of what guesses.

    Raises:
        FileError: The model is not known, or more tokens are accepted than there are guesses for.
    """
    speculation = job.speculation
    if speculation is None:
        return None
    most = speculation.draft_tokens + 1
    told = ("acceptance_length", "acceptance", "acceptance_by_position")
    given = [name for name in told if getattr(speculation, name) is not None]
    if len(given) > 1:
        raise place.error(
            f"speculation.{given[1]}",
            f"says the same as {given[0]} in another way",
            value=getattr(speculation, given[1]),
            allowed="one of them",
        )
    _check_positions(speculation, place)
    if speculation.acceptance_length is not None and speculation.acceptance_length > most:
        problem = f"is more than the tokens that a step checks: {speculation.draft_tokens} guesses and its own"
        raise place.error(
            "speculation.acceptance_length",
            problem,
            value=speculation.acceptance_length,
            allowed=f"1 to {most}",
        )
    if speculation.draft is None:
        return speculation
    return replace(
        speculation, draft=_architecture("speculation.draft", speculation.draft, folder, place)
    )


def _check_positions(speculation: Speculation, place: JobPlace) -> None:
    """Check that there is an acceptance for each guess, and none above that of the guess before it.

    Raises:
        FileError: There is not.
    """
    shares, field = speculation.acceptance_by_position, "speculation.acceptance_by_position"
    if shares is None:
        return
    if len(shares) < speculation.draft_tokens:
        problem = f"has {len(shares)}, and {speculation.draft_tokens} tokens are guessed"
        raise place.error(field, problem, allowed=f"at least {speculation.draft_tokens} shares")
    if any(later > earlier for earlier, later in pairwise(shares)):
        problem = "rises: a guess is accepted only where those before it are"
        raise place.error(field, problem, value=list(shares), allowed="shares that fall or stay")


def _architecture(
    field: str, model: str | ModelArchitecture, folder: Path, place: JobPlace
) -> ModelArchitecture:
    """Return the architecture that a field of the job names."""
    if isinstance(model, ModelArchitecture):
        return model
    path = folder / Path(model).expanduser()
    local = bool(model) and (path / CONFIG_FILE).is_file()
    if not local and canonical_name("models", model) in model_names():
        return load_model(model)
    if model and path.is_dir() and not (path / CONFIG_FILE).exists():
        problem = f"is a folder without {CONFIG_FILE}"
        raise place.error(field, problem, value=model)
    if model and path.exists():
        return read_hf_config(path)
    cached = cached_config(model)
    if cached is not None:
        return read_hf_config(cached)
    near = nearest_models(model)
    raise place.error(
        field,
        "is neither a known model, by name or Hugging Face id, nor the path of a Hugging Face config, nor an id in "
        "the local Hugging Face cache",
        value=model,
        allowed=f"a known name or id, or the path of a folder with the model's {CONFIG_FILE}",
        nearest=next(iter(near), None),
        others=near[1:],
    )


def _on_devices(job: Job, folder: Path, place: JobPlace) -> Job:
    """Return the job with known devices, and with the precision and engines that it leaves open."""
    check_cluster(job, place)
    sheets = tuple(
        _device(group.gpu, at, job, folder, place) for at, group in enumerate(job.cluster)
    )
    own = {sheet.name: sheet for sheet in sheets if sheet.name not in device_names()}
    groups = zip(job.cluster, sheets, strict=True)
    kept = load_framework(job.framework).keeps_domains
    job = replace(
        job,
        cluster=tuple(on_usual_nodes(group, sheet, keeps_domains=kept) for group, sheet in groups),
        devices=FrozenDict(own) if own else None,
        precision=job.precision or sheets[0].default_precision,
        engines=_engines(job.engines, sheets[0], place),
    )
    check_precision(job, sheets, place)
    check_host_cores(job, place)
    return job


def _device(gpu: str, at: int, job: Job, folder: Path, place: JobPlace) -> DeviceSheet:
    """Return the sheet of a device that a job names: its own, the catalog's or a file's."""
    name = canonical_name("devices", gpu)
    if gpu in (job.devices or {}) or name in device_names():
        return sheet_of(job, gpu)
    path = folder / Path(gpu).expanduser()
    if not path.is_file():
        names = (*device_names(), *(job.devices or ()))
        raise place.unknown(f"cluster.{at}.gpu", "device", gpu, names)
    sheet = read_yaml(DeviceSheet, path)
    if canonical_name("devices", sheet.name) in device_names():
        problem = "is the name of a device of the catalog"
        raise FileError(str(path), problem, field="name", value=sheet.name, allowed="another name")
    if sheet.architecture not in architecture_names():
        raise FileError(
            str(path),
            "no efficiencies are known of this architecture",
            field="architecture",
            value=sheet.architecture,
            allowed=", ".join(architecture_names()),
            nearest=nearest_name(sheet.architecture, architecture_names()),
        )
    return sheet


def _engines(engines: Engines, sheet: DeviceSheet, place: JobPlace) -> Engines:
    usual = usual_engines(sheet.kind)
    train = _engine("train", engines.train or usual.train, place)
    generate = _engine("generate", engines.generate or usual.generate, place)
    return replace(engines, train=train, generate=generate)


def _engine(
    role: Literal["train", "generate"], name: str | None, place: JobPlace, field: str | None = None
) -> str:
    assert name is not None, "every kind of device has its usual engines"
    known = canonical_name("engines", name)
    if known in engine_names() and load_engine(known).role == role:
        return known
    fitting = [each for each in engine_names() if load_engine(each).role == role]
    raise place.unknown(field or f"engines.{role}", f"engine that can {role}", name, fitting)


def _file(
    name: str | None, field: str, folder: Path, place: JobPlace, *, folders: bool = False
) -> str | None:
    """Return a file's absolute path; one that was absolute already is checked by who opens it.

    Args:
        folders: Whether a folder will do as well.
    """
    if name is None or Path(name).is_absolute():
        return name
    path = folder / name
    if not (path.exists() if folders else path.is_file()):
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise place.error(
            field, "no such file", value=name, nearest=nearest_name(path.name, siblings)
        )
    return str(path.resolve())


def _local(name: str, folder: Path) -> str:
    """Return the absolute path of a tokenizer's folder, or the name of one that is no local folder."""
    path = folder / name
    return str(path.resolve()) if name != "bytes" and path.exists() else name


def _rewards(rewards: Rewards | None, folder: Path, place: JobPlace) -> Rewards | None:
    """Return the rewards with absolute paths of the functions' files; built-in rules have plain names."""
    if rewards is None:
        return None
    return replace(
        rewards,
        function=_function(rewards.function, "rewards.function", folder, place),
        cost_function=_function(rewards.cost_function, "rewards.cost_function", folder, place),
    )


def _judge(job: Job, folder: Path, place: JobPlace) -> Rewards | None:
    """Return the job's rewards with a distribution for the lengths of what its judge writes.

    Raises:
        FileError: There is no such distribution, or no reward model that could judge.
    """
    rewards, field = job.rewards, "rewards.judge"
    if rewards is None or rewards.judge is None:
        return rewards
    if "reward" not in job.models:
        problem = "says how the reward model generates, and there is none"
        raise place.error(field, problem, allowed="with models.reward")
    given: dict[str, Lengths] = {"response_tokens": rewards.judge.response_tokens}
    work = replace(job.workload, max_total_tokens=None, environments=())
    found = _resolved_lengths(field, given, work, folder, place)
    judge = replace(rewards.judge, response_tokens=found["response_tokens"])
    return replace(rewards, judge=judge)


def _teacher(job: Job, place: JobPlace) -> Teacher | None:
    """Return how the job's teacher answers, with the name of its engine's sheet.

    Raises:
        FileError: There is no teacher, no such engine, nothing that an engine's settings are of, or its vocabulary is
            smaller than what it tells of.
    """
    teacher = job.teacher
    if teacher is None:
        return None
    if "teacher" not in job.models:
        problem = "says what a teacher tells, and there is none"
        raise place.error("teacher", problem, allowed="with models.teacher")
    width = job.architecture("teacher").vocab_size
    if teacher.top_tokens == "all":
        _check_comparing(job, place)
    elif teacher.top_tokens is not None and teacher.top_tokens > width:
        problem, allowed = "is more than the teacher's vocabulary", f"at most {width}"
        raise place.error("teacher.top_tokens", problem, value=teacher.top_tokens, allowed=allowed)
    if teacher.engine is None:
        if teacher != Teacher(top_tokens=teacher.top_tokens):
            problem = "is missing: max_running, memory_fraction and imbalance are an engine's"
            raise place.error("teacher.engine", problem)
        return teacher
    engine = _engine("generate", teacher.engine, place, "teacher.engine")
    return replace(teacher, engine=engine)


def _check_comparing(job: Job, place: JobPlace) -> None:
    """Refuse whole distributions of a teacher that are not compared with the actor's, entry by entry, on its GPUs.

    Raises:
        FileError: Names the field.
    """
    field, teacher = "teacher.top_tokens", job.teacher
    own, other = (job.architecture(role).vocab_size for role in ("actor", "teacher"))
    if own != other:
        problem = f"compares vocabularies of {own:,} and {other:,} entries"
        raise place.error(
            field, problem, value="all", allowed="a teacher of the actor's vocabulary"
        )
    if load_algorithm(job.algorithm).advantage != "none":
        problem = f"is a loss of its own, and {job.algorithm} has another"
        raise place.error(
            field, problem, value="all", allowed="of algorithm on-policy-distillation"
        )
    if teacher is not None and teacher.engine is not None:
        problem = "answers with likeliest tokens, and whole distributions are compared"
        raise place.error(
            "teacher.engine", problem, value=teacher.engine, allowed="none, or a number"
        )


def _function(spec: str | None, field: str, folder: Path, place: JobPlace) -> str | None:
    if spec is None or ".py" not in spec:
        return spec
    path, separator, name = spec.rpartition(":")
    if not separator or not path.endswith(".py") or not name.isidentifier():
        raise place.error(
            field,
            "does not name a function of a file",
            value=spec,
            allowed="a built-in one's name, or path/to/file.py:name",
        )
    return f"{_file(path, field, folder, place)}:{name}"


def _pretrain(pretrain: Pretrain | None, folder: Path, place: JobPlace) -> Pretrain | None:
    if pretrain is None:
        return None
    return replace(
        pretrain, file=_file(pretrain.file, "pretrain.file", folder, place, folders=True)
    )
