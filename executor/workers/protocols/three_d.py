"""3D_PROTO: data-parallel positions get shares; the end of each pipeline has their results."""

from rlplan.executor.workers.protocols import by_dp, from_leaders

distribute, collect = by_dp, from_leaders
