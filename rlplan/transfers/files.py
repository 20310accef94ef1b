"""A checkpoint written by training to a shared file system and read by every engine."""

from rlplan.transfers import method

TRANSITION = method(
    "written to shared files and read by the other pool",
    between_pools=True,
)
