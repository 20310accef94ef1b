"""Where a job was read from, so that every complaint names its file and field, and where its models' weights are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlplan.errors import FileError, nearest_name
from rlplan.files.frozen import FrozenDict
from rlplan.files.places import is_url
from rlplan.job import RANDOM, Job, Role
from rlplan.models import CONFIG_FILE, WEIGHT_FILES


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
