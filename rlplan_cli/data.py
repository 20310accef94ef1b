"""Looking at a job's data as `execute` does, before GPUs are booked: `rlplan check`, `rlplan search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlplan_cli.terminal import say

if TYPE_CHECKING:
    from rlplan.errors import UserError
    from rlplan.job import Job

BYTES = "bytes"


def check_data(job: Job, folder: Path) -> None:
    """Refuse a job whose data `execute` would refuse, with all mistakes at once.

    Args:
        folder: What relative paths in the job are relative to.

    Raises:
        UserError: The only mistake, or all of them.
    """
    from rlplan.errors import refuse

    refuse(mistakes_in_data(job, folder))


def mistakes_in_data(job: Job, folder: Path) -> list[UserError]:
    """Return what `execute` would refuse of a job's prompts, tokenizer, columns and lengths.

    A job that names no data has none: an evaluation of which only the frequency is known, as a script's, is forecast and not
    run. Where nothing here can read its tokenizer, it is told that lengths are not looked at.
    """
    from importlib.util import find_spec

    from rlplan.executor.data.workload import read_data
    from rlplan.executor.learning.rules import needed_columns

    texts = job.pretrain is not None and job.pretrain.file is not None
    held_out_file = None if job.evaluation is None else job.evaluation.prompts_file
    named = (job.prompts_file, held_out_file)
    if named == (None, None) and job.tokenizer == BYTES and not texts:
        return []
    if job.tokenizer != BYTES and find_spec("transformers") is None:
        say("data not looked at: reading its tokenizer needs pip install 'rlplan[execute]'")
        return []
    return read_data(job, folder, needed_columns(job)).mistakes
