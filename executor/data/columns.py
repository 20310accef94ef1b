"""Names of columns: those of the greedy baseline stand beside those of the samples."""

from collections.abc import Mapping

from executor.data.batches import Array, Columns

BASELINE = "baseline_"


def as_baseline(outputs: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return a task's outputs as those of the greedy responses, data keys and columns renamed."""
    return {
        BASELINE + key: {BASELINE + name: column for name, column in columns.items()}
        for key, columns in outputs.items()
    }


def sequences_for(output: str, columns: Columns) -> tuple[Array, Array]:
    """Return the tokens and parts that an output of an infer task is about."""
    prefix = BASELINE if output.startswith(BASELINE) else ""
    return columns[f"{prefix}tokens"], columns[f"{prefix}parts"]


def column_of(output: str) -> str:
    """Return what a model gives out for a data key: `log_probs`, `values` or `scores`."""
    if output.endswith("log_probs"):
        return "log_probs"
    return "values" if output.endswith("values") else "scores"
