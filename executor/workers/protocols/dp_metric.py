"""DP_METRIC: data-parallel positions get shares, and the metrics of each are joined."""

from rlplan.executor.workers.protocols import by_dp, from_leaders

distribute, collect = by_dp, from_leaders
