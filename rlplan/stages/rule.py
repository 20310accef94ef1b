"""A function of a prompt and its response, called in CPU worker processes."""

from rlplan.stages import StageKind

KIND = StageKind(stage="preparation", calls_functions=True)
