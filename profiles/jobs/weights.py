"""Where the weights of a job's models are: what is said, and what folders and ids of models tell."""

from pathlib import Path
from typing import Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.places import is_url
from rlplan.job import RANDOM, Job, Role
from rlplan.models.folder import CONFIG_FILE, WEIGHT_FILES
from rlplan.profiles.jobs.place import JobPlace

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
    said = job.weights or FrozenDict[Role, str]({})
    for role in said:
        if role not in job.models:
            allowed = ", ".join(job.models)
            raise place.error("weights", "names no model of the job", value=role, allowed=allowed)
    found: dict[Role, str] = {}
    for role, model in job.models.items():
        if role in said:
            found[role] = _said(said[role], f"weights.{role}", folder, place)
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


def _said(given: str, field: str, folder: Path, place: JobPlace) -> str:
    if given == RANDOM or is_url(given):  # a URL is read from where the job runs
        return given
    path = folder / Path(given).expanduser()
    if path.exists() or not is_hub_id(given):
        if not has_weights(path):
            problem = f"is no folder with {CONFIG_FILE} and {WEIGHT_FILES}"
            raise place.error(field, problem, value=given, allowed=f"`{RANDOM}`, or such a folder")
        return str(path.resolve())
    return given
