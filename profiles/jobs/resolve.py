"""Turn a job as a user writes it into one that stands alone: names and files become values."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from profiles.analytic.efficiencies import architecture_names
from profiles.jobs.checks import (
    check_adapters,
    check_architectures,
    check_cluster,
    check_importance,
    check_precision,
    check_roles,
    check_workload,
)
from profiles.jobs.config.reading import read_hf_config
from profiles.jobs.environments import FIELD, check_environments, check_host_cores, with_traces_read
from profiles.jobs.logged_lengths import with_logged_lengths
from profiles.jobs.nodes import on_usual_nodes
from profiles.jobs.place import JobPlace
from profiles.jobs.trace_lengths import read_trace
from profiles.jobs.weights import weights_of_models
from profiles.sheets import (
    canonical_name,
    device_names,
    engine_names,
    load_engine,
    load_framework,
    load_model,
    model_names,
    sheet_names,
    sheet_of,
)
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import JOB_VERSION, Engines, Job, Pretrain, Rewards, WeightSync
from rlplan.models.folder import CONFIG_FILE
from rlplan.models.model import ModelArchitecture
from rlplan.sheets.hardware import DeviceSheet
from rlplan.workload.environment import Environment
from rlplan.workload.lengths import Lengths, TraceFile
from rlplan.workload.work import Workload

# The engines that a job gets when it names none: on CPU what this project itself runs, on GPU what
# RL frameworks commonly run.
_USUAL_ENGINES = {
    "cpu": Engines(train="torch-tp-dp", generate="torch-static"),
    "gpu": Engines(train="megatron-core", generate="vllm"),
}


def usual_engines(kind: Literal["cpu", "gpu"]) -> Engines:
    """Return the engines that a job on devices of this kind gets when it names none."""
    return _USUAL_ENGINES[kind]


def load_job(path: Path) -> Job:
    """Return the job of a file, resolved.

    Raises:
        FileError: The file is missing, broken or of another version, or a field is wrong.
    """
    data = load_yaml(path)
    check_version(data, JOB_VERSION, str(path), "job")
    return resolve_job(decode(Job, data, str(path)), path.parent, file=str(path))


def resolve_job(job: Job, folder: Path, *, file: str | None = None, prefix: str = "") -> Job:
    """Return the job with architectures for names, distributions for traces and logs, and nothing left to default.

    A relative `prompts_file`, tokenizer or reward file becomes absolute, so that a plan runs from
    any folder. A resolved job resolves to itself.

    Args:
        folder: What paths in the job are relative to: the folder of its file.
        file: Name of the file for messages.
        prefix: Dotted path of the job inside the file, with a final dot.

    Raises:
        FileError: A name or file is not known, or parts of the job contradict each other.
    """
    place = JobPlace(file=file or f"job {job.name!r}", prefix=prefix)
    check_roles(job, place)
    work = with_logged_lengths(_with_traces_read(job, folder, place), place)
    job = replace(job, workload=work)
    check_workload(job, place)
    check_environments(job, place)
    architectures = {
        role: _architecture(role, model, folder, place) for role, model in job.models.items()
    }
    job = replace(
        job, models=FrozenDict(architectures), weights=weights_of_models(job, folder, place)
    )
    check_architectures(job, place)
    check_adapters(job, place)
    job = _as_its_framework_does(job, place)
    check_importance(job, place)
    job = _on_devices(job, folder, place)
    return replace(
        job,
        prompts_file=_file(job.prompts_file, "prompts_file", folder, place, folders=True),
        tokenizer=_local(job.tokenizer, folder),
        rewards=_rewards(job.rewards, folder, place),
        pretrain=_pretrain(job.pretrain, folder, place),
    )


def _as_its_framework_does(job: Job, place: JobPlace) -> Job:
    """Return the job with what it leaves open taken from its framework's sheet."""
    name, known = canonical_name("frameworks", job.framework), sheet_names("frameworks")
    if name not in known:
        raise place.unknown("framework", "framework", job.framework, known)
    sheet = load_framework(name)
    engines, sync, rewards = job.engines, job.weight_sync, job.rewards
    if rewards is not None and rewards.streamed is None and sheet.streams_rewards:
        rewards = replace(rewards, streamed=True)
    return replace(
        job,
        framework=name,
        rewards=rewards,
        engines=Engines(
            train=engines.train or sheet.engines.train,
            generate=engines.generate or sheet.engines.generate,
        ),
        old_log_prob=job.old_log_prob or sheet.old_log_prob,
        weight_sync=WeightSync(
            shared_pool=sync.shared_pool or sheet.weight_sync.shared_pool,
            between_pools=sync.between_pools or sheet.weight_sync.between_pools,
        ),
    )


def _with_traces_read(job: Job, folder: Path, place: JobPlace) -> Workload:
    def read(field: str, lengths: Lengths) -> Lengths:
        if not isinstance(lengths, TraceFile):
            return lengths
        found = _file(lengths.trace, f"{field}.trace", folder, place)
        assert found is not None
        return read_trace(lengths, Path(found))

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


def _architecture(
    role: str, model: str | ModelArchitecture, folder: Path, place: JobPlace
) -> ModelArchitecture:
    if isinstance(model, ModelArchitecture):
        return model
    path = folder / Path(model).expanduser()
    local = "/" in model and (path / CONFIG_FILE).exists()
    if not local and canonical_name("models", model) in model_names():
        return load_model(model)
    if model and path.is_dir() and not (path / CONFIG_FILE).exists():
        problem = f"is a folder without {CONFIG_FILE}"
        raise place.error(f"models.{role}", problem, value=model)
    if model and path.exists():
        return read_hf_config(path)
    raise place.error(
        f"models.{role}",
        "is neither a known model, by name or Hugging Face id, nor the path of a Hugging Face config",
        value=model,
        allowed=", ".join(model_names()),
        nearest=nearest_name(Path(model).name.lower(), model_names()),
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
    return Engines(
        train=train, generate=_engine("generate", engines.generate or usual.generate, place)
    )


def _engine(role: Literal["train", "generate"], name: str | None, place: JobPlace) -> str:
    assert name is not None, "every kind of device has its usual engines"
    known = canonical_name("engines", name)
    if known in engine_names() and load_engine(known).role == role:
        return known
    fitting = [each for each in engine_names() if load_engine(each).role == role]
    raise place.unknown(f"engines.{role}", f"engine that can {role}", name, fitting)


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
