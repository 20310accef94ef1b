"""The profile that a session fills: a new one, or what an earlier session left in the folder."""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from profiles.tables.table import HEADER_FILE, Profile, new_profile, read_profile
from rlplan.errors import FileError, UserError
from rlplan.sheets.machine import fingerprint_digest, matches, read_fingerprint


def open_profile(out: Path, name: str, device: str, devices: int) -> Profile:
    """Return the profile in `out` to go on with, or a new one.

    Raises:
        FileError: `out` holds a profile of another machine or device, or one that was measured
            under other conditions; it is left as it is.
    """
    fingerprint = read_fingerprint()
    machine = {
        "fingerprint": fingerprint_digest(fingerprint),
        **fingerprint,
        "devices": str(devices),
    }
    software = {"torch": torch_version(), "python": fingerprint["python"]}
    if out.exists() and not out.is_dir():
        raise FileError(str(out), "is a file; a profile is a folder")
    if not (out / HEADER_FILE).is_file():
        return new_profile(name, device, machine, software)
    profile = read_profile(out)
    _check_same(profile, out, machine, device=device, torch=software["torch"])
    return profile


def torch_version() -> str:
    """Return the version of torch, which is not imported for it.

    Raises:
        UserError: Torch is not installed.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "profiling measures with torch, which is not installed: "
            'install the extra `execute` (pip install "rlplan[execute]")'
        ) from None


def _check_same(
    profile: Profile, out: Path, machine: Mapping[str, str], *, device: str, torch: str
) -> None:
    """Refuse what would mix measurements of different things in one profile."""
    header = profile.header
    file = str(out / HEADER_FILE)
    elsewhere = "or give another folder to write to"
    if not matches(header.machine, machine):
        raise FileError(
            file,
            "is a profile of another machine, and is left as it is",
            field="machine.fingerprint",
            value=header.machine["fingerprint"],
            allowed=f"{machine['fingerprint']} ({machine['cpu']}, {machine['cores']} cores), "
            f"{elsewhere}",
        )
    conditions = (
        ("device", header.device, device),
        ("machine.devices", header.machine.get("devices", ""), machine["devices"]),
        ("software.torch", header.software.get("torch", ""), torch),
    )
    for field, found, wanted in conditions:
        if found != wanted:
            raise FileError(
                file,
                "is a profile that was measured under other conditions, and is left as it is",
                field=field,
                value=found,
                allowed=f"{wanted}, {elsewhere}",
            )
