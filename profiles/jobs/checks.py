"""Checks of a job: are all parts there, do they agree, can a model's sizes be, do its weights lie where it says?

Every complaint names the file and the field that the job was read from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import Algorithm
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import is_url
from rlplan.files.frozen import FrozenDict
from rlplan.job import RANDOM, Job, Role
from rlplan.models import (
    CONFIG_FILE,
    OF_PRODUCTS,
    WEIGHT_FILES,
    ModelArchitecture,
    layer_kinds,
)
from rlplan.profiles.sheets import (
    canonical_name,
    device_names,
    load_device,
    load_framework,
    sheet_names,
)
from rlplan.rules.batches import learned_units
from rlplan.rules.layouts import divisors
from rlplan.sheets import DeviceSheet
from rlplan.workload import Empirical, Lengths, Uniform, longest, mean_length

_POSITIVE = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_size",
    "vocab_size",
    "max_positions",
)

# Beyond any model of today by a factor of ten and of a hundred; a slip of the keyboard is larger still.
MOST_LAYERS = 4096
MOST_PARAMETERS = 10**15

# More than ten times the widest of today: 20,480 of MT-NLG 530B (Smith et al. 2022, arXiv:2201.11990).
MOST_HIDDEN_SIZE = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Locate a job: in a file of its own, or under a key of another file.

    Attributes:
        file: Path as the user gave it, or words for a job that comes from no file.
        prefix: Dotted path of the job inside the file, with a final dot (`job.` in a plan).
    """

    file: str
    prefix: str = ""

    def error(
        self,
        field: str,
        problem: str,
        *,
        value: object = None,
        allowed: str | None = None,
        nearest: str | None = None,
        others: Sequence[str] = (),
    ) -> FileError:
        """Return the error that says what is wrong with a field of the job."""
        return FileError(
            self.file,
            problem,
            field=f"{self.prefix}{field}",
            value=value,
            allowed=allowed,
            nearest=nearest,
            others=others,
        )

    def unknown(self, field: str, kind: str, name: str, known: Iterable[str]) -> FileError:
        """Return the error for a name that is not known, with the nearest one that is."""
        names = sorted(known)
        return self.error(
            field,
            f"unknown {kind}",
            value=name,
            allowed=", ".join(names),
            nearest=nearest_name(name.lower(), names),
        )


OWN = "rlplan"


def weights_of_models(
    job: Job, folder: Path, place: JobPlace
) -> Literal["random"] | FrozenDict[Role, str] | None:
    """Return by role where weights are, folders as absolute paths; of a job as it was written.

    A model that is named by a folder with weights has these, and one that is named by a Hugging Face id
    those of that id, where this project's own steps are run.

    Raises:
        FileError: Weights are said of a role that has no model, or lie in a folder without any.
    """
    if isinstance(job.weights, str):
        return job.weights
    weights = job.weights or FrozenDict[Role, str]({})
    for role in weights:
        if role not in job.models:
            allowed = ", ".join(job.models)
            raise place.error("weights", "names no model of the job", value=role, allowed=allowed)
    found: dict[Role, str] = {}
    for role, model in job.models.items():
        if role in weights:
            found[role] = _checked_source(weights[role], f"weights.{role}", folder, place)
        elif isinstance(model, str):
            path = folder / Path(model).expanduser()
            if has_weights(path):
                found[role] = str(path.resolve())
            elif not path.exists() and is_hub_id(model) and job.framework == OWN:
                found[role] = model
    return FrozenDict(found) if found else None


def has_weights(folder: Path) -> bool:
    """Tell whether a folder holds a model's configuration and its weights as safetensors."""
    return (folder / CONFIG_FILE).is_file() and any(folder.glob(WEIGHT_FILES))


def is_hub_id(name: str) -> bool:
    """Tell whether a name has the form of a Hugging Face id, `owner/name`."""
    owner, separator, rest = name.partition("/")
    return (
        bool(owner and separator and rest) and "/" not in rest and not owner.startswith((".", "~"))
    )


def _checked_source(given: str, field: str, folder: Path, place: JobPlace) -> str:
    if given == RANDOM or is_url(given):  # a URL is read from where the job runs
        return given
    path = folder / Path(given).expanduser()
    if path.exists() or not is_hub_id(given):
        if not has_weights(path):
            problem = f"is no folder with {CONFIG_FILE} and {WEIGHT_FILES}"
            raise place.error(field, problem, value=given, allowed=f"`{RANDOM}`, or such a folder")
        return str(path.resolve())
    return given


class ArchitectureFault(NamedTuple):
    """Name the field that is wrong, what is wrong with it, and what would be right."""

    field: str
    problem: str
    allowed: str


def architecture_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return the first thing that is wrong with a model's sizes, or None."""
    for field in _POSITIVE:
        if getattr(model, field) < 1:
            return ArchitectureFault(field, "must be at least 1", "a whole number from 1")
    if model.num_heads % model.num_kv_heads:
        return ArchitectureFault(
            "num_kv_heads",
            f"does not divide the {model.num_heads} query heads",
            f"a divisor of {model.num_heads}",
        )
    families = sheet_names("families")
    if model.family not in families:
        return ArchitectureFault("family", "is not known", ", ".join(families))
    return _layers_fault(model) or _expert_fault(model) or _size_fault(model)


def _size_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return what makes a model larger than there can be, counted by its widest matrices."""
    if model.num_layers > MOST_LAYERS:
        return ArchitectureFault("num_layers", "is too many", f"at most {MOST_LAYERS:,}")
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    widths = {
        "ffn_size": model.ffn_size,
        "num_experts": model.num_experts * model.moe_ffn_size,
        "num_heads": heads,
        "vocab_size": model.vocab_size / model.num_layers,
    }
    field = max(widths, key=lambda name: widths[name])
    parameters = model.num_layers * model.hidden_size * widths[field]
    tower = model.vision_parameters or 0
    if tower > parameters:
        field, parameters = "vision_parameters", tower
    if parameters <= MOST_PARAMETERS:
        if model.hidden_size <= MOST_HIDDEN_SIZE:
            return None
        return ArchitectureFault("hidden_size", "is too large", f"at most {MOST_HIDDEN_SIZE:,}")
    problem = f"gives about {parameters:.0e} parameters with the other sizes"
    return ArchitectureFault(field, problem, f"at most {MOST_PARAMETERS:.0e} parameters")


def _layers_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return what is wrong with layers of unlike kinds: both fields or neither, known names, all layers."""
    kinds, runs = model.layer_kinds, model.layer_runs
    if (kinds is None) != (runs is None):
        missing = "layer_kinds" if kinds is None else "layer_runs"
        return ArchitectureFault(missing, "is missing", "layer_kinds and layer_runs together")
    if kinds is None or runs is None:
        return None
    for name in (name for run in runs for name in run.kinds):
        if name not in kinds:
            problem = f"names {name!r}, which is no kind of layer"
            return ArchitectureFault("layer_runs", problem, ", ".join(kinds))
    layers = sum(run.count * len(run.kinds) for run in runs)
    if layers != model.num_layers:
        problem = f"has {layers} layers, and num_layers says {model.num_layers}"
        return ArchitectureFault("layer_runs", problem, f"{model.num_layers} layers together")
    return None


def _expert_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    if model.num_experts < 0:
        return ArchitectureFault("num_experts", "must not be negative", "0 for a dense model")
    if not model.num_experts:
        return None
    if not 1 <= model.experts_per_token <= model.num_experts:
        problem = f"must lie between 1 and the {model.num_experts} experts"
        return ArchitectureFault("experts_per_token", problem, f"1 to {model.num_experts}")
    if model.moe_ffn_size < 1:
        return ArchitectureFault("moe_ffn_size", "must be at least 1", "a whole number from 1")
    return None


# More than any cluster of today by a factor of ten; a slip of the keyboard is larger still.
MOST_GPUS = 1_000_000
MOST_GROUPS = 32
# 32 times as many as DeepSeek-R1 learnt from at a time (8,192; arXiv:2501.12948v2). Every response of the fullest replica is played, for
# each limit of running sequences that `check` proposes too: of a million on four replicas 13 CPU seconds were not enough.
MOST_SEQUENCES = 2**18
# The mean of lengths that were made to have one is as near to it.
ROUNDING = 1e-6
# Losses that clip every token as PPO does, and weigh it by settings.
CLIPPED_BY_TOKEN = ("ppo_policy", "ppo_ptx_policy")
# The estimator that works on the rewards of greedy responses too, of which a teacher is asked nothing.
GREEDY_BASELINE = "greedy-baseline"


def check_roles(job: Job, place: JobPlace) -> None:
    """Check the algorithm's name, that it has the models it needs, and where rewards come from.

    Raises:
        FileError: One of them is missing, unknown or too many.
    """
    if job.algorithm not in algorithm_names():
        raise place.unknown("algorithm", "algorithm", job.algorithm, algorithm_names())
    algorithm = load_algorithm(job.algorithm)
    known = (*algorithm.required_roles, *algorithm.optional_roles, "teacher")
    model_roles = [role for role in dict.fromkeys(known) if role != "rule"]
    for role in algorithm.roles_needed(job):
        if role not in job.models:
            spared = ", unless hyperparameters.kl_coefficient is 0" if role == "reference" else ""
            raise place.error(
                f"models.{role}",
                f"is missing; {algorithm.name} needs it{spared}",
                allowed=", ".join(model_roles),
            )
    for role in job.models:
        if role not in model_roles:
            hint = "; name the function under rewards.function" if role == "rule" else ""
            raise place.error(
                f"models.{role}",
                f"{algorithm.name} has no model of this role{hint}",
                allowed=", ".join(model_roles),
            )
    _check_rewards(job, algorithm, place)
    _check_settings(job, algorithm, place)
    _check_adapters(job, algorithm, place)


def _check_rewards(job: Job, algorithm: Algorithm, place: JobPlace) -> None:
    has_rule = job.rewards is not None and job.rewards.calls
    if has_rule and "rule" not in (*algorithm.required_roles, *algorithm.optional_roles):
        field = "service" if job.rewards and job.rewards.function is None else "function"
        raise place.error(f"rewards.{field}", f"{algorithm.name} takes no reward function")
    scored = has_rule or "reward" in job.models or job.environments
    judged = scored or "teacher" in job.models
    if judged and not scored and algorithm.advantage == GREEDY_BASELINE:
        raise place.error(
            "rewards",
            f"{algorithm.name} subtracts the reward of a greedy response, and a teacher gives none",
            allowed="a reward model under models.reward, or a function under rewards.function",
        )
    if not judged and "reward" in algorithm.optional_roles:
        raise place.error(
            "rewards",
            "nothing gives rewards",
            allowed="a reward model under models.reward, a teacher under models.teacher, a function under "
            "rewards.function, a service under rewards.service, or workload.environments",
        )
    has_cost = job.rewards is not None and job.rewards.cost_function is not None
    if has_cost and not algorithm.constrained:
        raise place.error("rewards.cost_function", f"{algorithm.name} keeps no cost under a limit")
    if algorithm.constrained and not has_cost and "cost" not in job.models:
        raise place.error(
            "rewards",
            "nothing gives costs",
            allowed="a cost model under models.cost, or a function under rewards.cost_function",
        )


def _check_settings(job: Job, algorithm: Algorithm, place: JobPlace) -> None:
    """Refuse settings that the algorithm does not have, or that contradict each other."""
    if job.pretrain is not None and not algorithm.pretrains:
        raise place.error("pretrain", f"{algorithm.name} mixes no other texts into its updates")
    if job.constraint is not None and not algorithm.constrained:
        raise place.error("constraint", f"{algorithm.name} keeps no cost under a limit")
    if job.dynamic_sampling is not None and not algorithm.groups:
        raise place.error("dynamic_sampling", f"{algorithm.name} does not sample groups again")
    if job.constraint and job.constraint.multiplier > job.constraint.multiplier_max:
        raise place.error(
            "constraint.multiplier",
            "is above constraint.multiplier_max",
            value=job.constraint.multiplier,
            allowed=f"at most {job.constraint.multiplier_max:g}",
        )
    _check_schedule(job, place)
    settings, update = (
        job.hyperparameters,
        next(t for t in algorithm.tasks if t.name == "actor.update"),
    )
    for field in ("clip_ratio_dual", "importance_cap"):
        if getattr(settings, field) is not None and update.loss not in CLIPPED_BY_TOKEN:
            raise place.error(f"hyperparameters.{field}", f"the loss of {algorithm.name} has none")
    _check_teacher(job, algorithm, place)
    if settings.kl_target is not None and not algorithm.uses_reference(settings):
        raise place.error(
            "hyperparameters.kl_target", "there is no penalty whose weight could change"
        )
    place_of_kl = job.hyperparameters.kl_in
    if place_of_kl not in (None, "none") and "reference" not in algorithm.required_roles:
        raise place.error(
            "hyperparameters.kl_in",
            f"{algorithm.name} has no reference model to stay near to",
            value=place_of_kl,
            allowed="none",
        )


def _check_teacher(job: Job, algorithm: Algorithm, place: JobPlace) -> None:
    """Refuse a weight of what a teacher says where there is none, or nothing else is learnt from."""
    settings = job.hyperparameters
    if settings.teacher_coefficient != 1 and "teacher" not in job.models:
        problem = "weighs what a teacher says, and there is none"
        raise place.error("hyperparameters.teacher_coefficient", problem, allowed="models.teacher")
    if settings.teacher_coefficient == 0 and "teacher" in algorithm.required_roles:
        raise place.error(
            "hyperparameters.teacher_coefficient",
            f"weighs the only thing with nothing that {algorithm.name} learns from",
            value=settings.teacher_coefficient,
            allowed="above 0",
        )


def _check_schedule(job: Job, place: JobPlace) -> None:
    """Refuse a schedule of the learning rate that has no end, or one that says nothing."""
    schedule, field = job.hyperparameters.schedule, "hyperparameters.schedule"
    if schedule is None:
        return
    warmup, iterations = schedule.warmup_iterations, schedule.iterations
    if schedule.decay == "constant":
        for name, value in (("iterations", iterations), ("minimum_share", schedule.minimum_share)):
            if value:
                problem = "a constant learning rate has none"
                raise place.error(f"{field}.{name}", problem, value=value, allowed="decay: cosine")
    elif iterations is None:
        problem = f"is missing: over how many iterations the learning rate falls ({schedule.decay})"
        raise place.error(f"{field}.iterations", problem)
    elif warmup >= iterations:
        raise place.error(
            f"{field}.warmup_iterations",
            "leaves no iteration in which the learning rate falls",
            value=warmup,
            allowed=f"below {iterations} (iterations)",
        )


def _check_adapters(job: Job, algorithm: Algorithm, place: JobPlace) -> None:
    trained = sorted({task.role for task in algorithm.tasks if task.trains} & set(job.models))
    for role in job.adapters or ():
        if role not in trained:
            raise place.error(
                f"adapters.{role}",
                f"{algorithm.name} trains no such model",
                allowed=", ".join(trained),
                nearest=nearest_name(role, trained),
            )


def check_importance(job: Job, place: JobPlace) -> None:
    """Refuse importance weights where the trainer has no log-probabilities of its own.

    Raises:
        FileError: Names the field.
    """
    cap = job.hyperparameters.importance_cap
    if cap is not None and job.old_log_prob != "trainer":
        raise place.error(
            "hyperparameters.importance_cap",
            "weighs the trainer's log-probabilities against the engine's",
            value=cap,
            allowed="none, or `old_log_prob: trainer`",
        )


def check_workload(job: Job, place: JobPlace) -> None:
    """Check that lengths can occur, and that the global batch divides into its updates.

    Raises:
        FileError: One of them is wrong; the field is named.
    """
    work = job.workload
    if work.sequences > MOST_SEQUENCES:
        raise place.error(
            "workload.prompts",
            f"gives {work.sequences:,} responses an iteration",
            value=work.prompts,
            allowed=f"at most {MOST_SEQUENCES:,}, samples_per_prompt counted",
        )
    for field in ("prompt_tokens", "response_tokens"):
        lengths, least = getattr(work, field), "at least one length"
        check_lengths(f"workload.{field}", lengths, place, least=least)
    algorithm = load_algorithm(job.algorithm)
    whole = algorithm.groups and _keeps_prompts_whole(job)
    units, name = (
        (learned_units(algorithm, work), "prompts") if whole else (work.sequences, "sequences")
    )
    if units % work.updates:
        raise place.error(
            "workload.updates",
            f"the {units} {name} of a global batch do not divide into so many updates",
            value=work.updates,
            allowed=_nearest_divisors(units, work.updates),
        )
    if algorithm.groups and work.samples_per_prompt == 1:
        raise place.error(
            "workload.samples_per_prompt",
            f"{job.algorithm} compares the samples of one prompt with each other",
            value=1,
            allowed="2 or more",
        )
    if algorithm.one_sample and work.samples_per_prompt > 1:
        raise place.error(
            "workload.samples_per_prompt",
            f"{job.algorithm} compares one sample of a prompt with the greedy response",
            value=work.samples_per_prompt,
            allowed="1",
        )
    if job.overlong and job.overlong.buffer_tokens > longest(work.response_tokens):
        raise place.error(
            "overlong.buffer_tokens",
            "is longer than the longest response",
            value=job.overlong.buffer_tokens,
            allowed=f"at most {longest(work.response_tokens)}",
        )


def check_cluster(job: Job, place: JobPlace) -> None:
    """Check that the cluster has GPUs, in a number that there can be.

    Raises:
        FileError: It has none, or too many, or a network that is not known; the field is named.
    """
    if not job.cluster:
        raise place.error("cluster", "is empty", allowed="at least one group of nodes")
    if len(job.cluster) > MOST_GROUPS:
        problem = f"has {len(job.cluster):,} groups of nodes"
        raise place.error("cluster", problem, allowed=f"at most {MOST_GROUPS}; nodes alike are one")
    if job.gpus > MOST_GPUS:
        raise place.error("cluster", f"has {job.gpus:,} GPUs", allowed=f"at most {MOST_GPUS:,}")
    for at, group in enumerate(job.cluster):
        kind = group.network
        if kind is not None and kind not in sheet_names("networks"):
            known = ", ".join(sheet_names("networks"))
            raise place.error(
                f"cluster.{at}.network", "is no kind with a sheet", value=kind, allowed=known
            )
        device = canonical_name("devices", group.gpu)
        alike = [each for each in job.cluster if canonical_name("devices", each.gpu) == device]
        if any(kind != each.network for each in alike):
            raise place.error(
                f"cluster.{at}.network",
                f"differs among nodes with {group.gpu}",
                value=kind,
                allowed="one kind of network for all nodes with one device",
            )
        if (group.nvlink_domain_gpus or 0) % group.gpus_per_node:
            raise place.error(
                f"cluster.{at}.nvlink_domain_gpus",
                "does not hold whole nodes",
                value=group.nvlink_domain_gpus,
                allowed=f"a multiple of {group.gpus_per_node} (GPUs per node)",
            )
        if group.spot is not None and group.usd_per_gpu_hour is None:
            raise place.error(
                f"cluster.{at}.usd_per_gpu_hour",
                "is missing: device sheets have list prices of nodes that stay, and spot prices change by the hour",
                allowed="what a GPU of these spot nodes costs an hour now, in USD",
            )
    if job.specs.run_seconds is not None and job.iterations is None:
        raise place.error(
            "iterations",
            "is missing: specs.run_seconds limits a whole run",
            allowed="of how many iterations the run is",
        )


def check_lengths(
    field: str, lengths: Lengths | None, place: JobPlace, *, least: str = "at least one"
) -> None:
    """Check that a distribution of whole numbers has any.

    Args:
        least: What a list holds at least, in words.

    Raises:
        FileError: It has none; the field is named.
    """
    if isinstance(lengths, Uniform) and lengths.low > lengths.high:
        allowed = f"at most {lengths.high}"
        raise place.error(f"{field}.low", "is above high", value=lengths.low, allowed=allowed)
    if isinstance(lengths, Empirical) and not lengths.values:
        raise place.error(f"{field}.values", "is empty", allowed=least)


def _keeps_prompts_whole(job: Job) -> bool:
    """Tell whether updates take prompts with all their samples, as this project's own executor does.

    Frameworks of the field compare samples over the whole batch, and cut it into updates by samples: verl,
    `ppo_mini_batch_size` x n; NeMo-RL, `train_global_batch_size`; OpenRLHF, `train.batch_size`.
    """
    name = canonical_name("frameworks", job.framework)
    return name not in sheet_names("frameworks") or load_framework(name).runs


def _nearest_divisors(number: int, wanted: int) -> str:
    """Return in words the divisors of a number on both sides of the one that was wanted."""
    below = max(size for size in divisors(number) if size < wanted)
    above = min((size for size in divisors(number) if size > wanted), default=None)
    return f"{below}" if above is None else f"{below} or {above}"


def check_architectures(job: Job, place: JobPlace) -> None:
    """Check that every model (of a resolved job) is possible and reaches over the longest sequence.

    Raises:
        FileError: A size is wrong, or sequences are longer than a model's positions.
    """
    for role, model in job.models.items():
        assert isinstance(model, ModelArchitecture), "models are resolved before they are checked"
        fault = architecture_fault(model)
        if fault:
            raise place.error(
                f"models.{role}.{fault.field}",
                fault.problem,
                value=getattr(model, fault.field),
                allowed=fault.allowed,
            )
        longest = job.workload.longest_sequence_tokens
        if longest > model.max_positions:
            raise place.error(
                "workload.response_tokens",
                f"the longest prompt and response have {longest} tokens together, more than the "
                f"positions of models.{role} ({model.name})",
                allowed=f"at most {model.max_positions} together",
            )


def check_adapters(job: Job, place: JobPlace) -> None:
    """Check the adapters of a resolved job against the models that they stand beside.

    Raises:
        FileError: A rank is no low one, or the reference is another model than the one that it shares.
    """
    for role, adapter in (job.adapters or {}).items():
        width = job.architecture(role).hidden_size
        if adapter.rank > width:
            raise place.error(
                f"adapters.{role}.rank",
                f"is larger than the model is wide ({job.architecture(role).name})",
                value=adapter.rank,
                allowed=f"1 to {width}",
            )
    shares = load_algorithm(job.algorithm).shares_reference(job)
    if shares and job.models.get("reference", job.models["actor"]) != job.models["actor"]:
        raise place.error(
            "adapters.actor.shares_reference",
            "the reference is another model than the actor, whose frozen weights it would be",
            value=True,
            allowed="false, or no models.reference",
        )


def check_precision(job: Job, sheets: tuple[DeviceSheet, ...], place: JobPlace) -> None:
    """Check that every device of the cluster has rates for the job's number formats.

    Raises:
        FileError: One has none; the message names the devices that have it.
    """
    formats = {"precision": job.precision, "rollout_precision": job.rollout_precision}
    if job.precision in OF_PRODUCTS:
        problem = "is a format of weights that generate, in which nothing is trained"
        allowed = ", ".join(sheets[0].peak_flops_per_second)
        raise place.error("precision", problem, value=job.precision, allowed=allowed)
    for sheet in sheets:
        for field, precision in formats.items():
            if (
                precision is None
                or OF_PRODUCTS.get(precision, precision) in sheet.peak_flops_per_second
            ):
                continue
            having = (load_device(name) for name in device_names())
            rate = OF_PRODUCTS.get(precision, precision)
            names = [each.name for each in having if rate in each.peak_flops_per_second]
            raise place.error(
                field,
                f"the sheet of {sheet.name} has no rate for it; devices that have one: "
                + (", ".join(names) or "none"),
                value=precision,
                allowed=", ".join(sheet.peak_flops_per_second),
            )


# A pebibyte, and ten thousand times a GPU's cache: larger numbers are mistaken units, and overflow sums of bytes.
MOST_OFFLOADED = {"replica_bytes": 2.0**50, "cache_ratio": 1e4}


def check_kv_offload(job: Job, place: JobPlace) -> None:
    """Check that one size is said of what host memory keeps of the cache, and that something waits to be read from it.

    Raises:
        FileError: None is, or two are, or one that no host has, or no episode has a second turn.
    """
    offload = job.kv_offload
    if offload is None:
        return
    given = [
        name for name in ("replica_bytes", "cache_ratio") if getattr(offload, name) is not None
    ]
    if len(given) != 1:
        problem = "says two sizes" if given else "says no size"
        raise place.error("kv_offload", problem, allowed="replica_bytes, or cache_ratio")
    value, most = getattr(offload, given[0]), MOST_OFFLOADED[given[0]]
    if value > most:
        problem = "is more than any host has"
        raise place.error(
            f"kv_offload.{given[0]}", problem, value=value, allowed=f"at most {most:g}"
        )
    if not job.workload.environments:
        problem = "keeps nothing: a response of one turn is read from no cache again, and what is preempted is computed"
        raise place.error("kv_offload", problem, allowed="workload.environments, or none")


def check_prefill(job: Job, place: JobPlace) -> None:
    """Check that what replicas do that read prompts alone is simulated for a job.

    Raises:
        FileError: Environments run in the process that generates, host memory keeps blocks of the cache, or more is begun
            than is learnt from.
    """
    if job.prefill is None:
        return
    if (
        job.kv_offload is not None
    ):  # replicas that write keep nothing, and what those that read off-load is not played
        problem = "is not simulated where host memory keeps blocks of the cache (kv_offload)"
        raise place.error("prefill", problem, allowed="one of the two")
    if any(each.inference == "inline" for each in job.workload.environments):
        problem = "is not simulated where episodes are played one by one (inference: inline)"
        raise place.error("prefill", problem, allowed="none")
    for name in ("over_provisioning", "over_sampling"):
        if getattr(job.workload, name) > 1:
            problem = f"is not simulated where more is begun than is learnt from (workload.{name})"
            raise place.error("prefill", problem, allowed="none, or 1 there")


STATES = ("linear-attention", "kimi-delta-attention", "state-space")


def check_shared_prompts(job: Job, place: JobPlace) -> None:
    """Check that trainers which share prompts have layers that attend: a state would have to go on from one prompt often.

    Raises:
        FileError: They have not.
    """
    for role, model in job.models.items():
        if not isinstance(model, ModelArchitecture) or not job.trainer(role).shares_prompts:
            continue
        if any(kind.attention in STATES for kind in layer_kinds(model).models):
            raise place.error(
                f"trainers.{role}.shares_prompts",
                f"is on, and {model.name} has layers with a state, which no trainer is known to share prompts in",
                allowed="false",
            )


def check_images(job: Job, place: JobPlace) -> None:
    """Check that images of prompts have a tower whose sizes are known, and room among the prompts' tokens.

    A tower that is frozen has to be there, too.

    Raises:
        FileError: They do not.
    """
    for role, model in job.models.items():
        if not isinstance(model, ModelArchitecture) or model.vision_parameters:
            continue
        if job.trainer(role).freezes_tower:
            problem = f"is on, and {model.name} reads no images"
            raise place.error(f"trainers.{role}.freezes_tower", problem, allowed="false")
    actor, work = job.models.get("actor"), job.workload
    if not isinstance(actor, ModelArchitecture):
        return
    tokens, mean = 0.0, mean_length(work.prompt_tokens)
    for name, held, tower in (
        ("images", work.images, actor.tower),
        ("sounds", work.sounds, actor.sound),
    ):
        if held is None:
            continue
        if tower is None:
            reads = bool(actor.vision_parameters)
            why = "of whose tower only the parameters are known" if reads else "which reads none"
            raise place.error(
                f"workload.{name}",
                f"are given for {actor.name}, {why}",
                allowed="none: their tokens among prompt_tokens are counted all the same",
            )
        tokens += held.tokens * held.per_prompt
        if tokens > mean * (1 + ROUNDING):
            raise place.error(
                f"workload.{name}",
                f"have {tokens:,.0f} tokens a prompt, and prompts {mean:,.0f} on average",
                allowed="at most the tokens of prompts, which hold those of images and of sound",
            )
