"""A session: all probes on this machine, or links between nodes, into one profile, which an interrupted session resumes."""

from rlplan.profiles.probes.session.profiling import (
    BACKENDS,
    Progress,
    open_bench,
    profile_links,
    profile_machine,
    settings_of,
)

__all__ = [
    "BACKENDS",
    "Progress",
    "open_bench",
    "profile_links",
    "profile_machine",
    "settings_of",
]
