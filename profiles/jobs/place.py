"""Where a job was read from, so that every complaint names its file and field."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlplan.errors import FileError, nearest_name


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
