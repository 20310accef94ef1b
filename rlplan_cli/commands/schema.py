"""`rlplan schema job|plan|site`: the JSON Schema that editors check files against."""

from enum import StrEnum
from typing import Annotated

import typer

from rlplan_cli.terminal import echo_json

EXAMPLE = "Example: rlplan schema job > job.schema.json"


class SchemaName(StrEnum):
    """Name the files that have a published schema."""

    JOB = "job"
    PLAN = "plan"
    SITE = "site"


def command(
    name: Annotated[SchemaName, typer.Argument(help="Which file's schema to print.")],
) -> None:
    """Print the JSON Schema of job.yaml, plan.yaml or site.yaml, for editors and checkers."""
    from rlplan.calibration import Calibration
    from rlplan.files.decoding import adapter
    from rlplan.job import Job
    from rlplan.plan import PlanDraft

    kinds = {SchemaName.JOB: Job, SchemaName.PLAN: PlanDraft, SchemaName.SITE: Calibration}
    schema = adapter(kinds[name]).json_schema()
    echo_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
