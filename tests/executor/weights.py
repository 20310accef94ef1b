"""Whole weights out of the parts that ranks hold."""

import numpy as np


def whole(parts_by_rank, tp, pp=1):
    """Return whole weights out of the parts of the first `tp` x `pp` ranks, stage by stage."""
    weights = {}
    for stage in range(pp):
        ranks = parts_by_rank[stage * tp : (stage + 1) * tp]
        for name in ranks[0]:
            parts = [rank[name] for rank in ranks]
            dimension = cut_dimension(name)
            scores = name == "head.weight" and len(parts[0]) == 1
            held_whole = dimension is None or scores
            weights[name] = parts[0] if held_whole else np.concatenate(parts, axis=dimension)
    return weights


def cut_dimension(name):
    if any(
        part in name
        for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed", "head")
    ):
        return 0
    return 1 if any(part in name for part in ("o_proj", "down_proj")) else None
