"""`rlplan schema job|plan`: the JSON Schema that editors check files against."""

from enum import StrEnum
from typing import Annotated

import typer

from rlplan_cli.terminal import echo_json

EXAMPLE = "Example: rlplan schema job > job.schema.json"


class SchemaName(StrEnum):
    """Name the files that have a published schema."""

    JOB = "job"
    PLAN = "plan"


def command(
    name: Annotated[SchemaName, typer.Argument(help="Which file's schema to print.")],
) -> None:
    """Print the JSON Schema of job.yaml or plan.yaml, for editors and checkers."""
    from rlplan.files.decoding import adapter
    from rlplan.job import Job
    from rlplan.plan import PlanDraft

    kind = Job if name is SchemaName.JOB else PlanDraft
    schema = adapter(kind).json_schema()
    echo_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
