"""An iteration in simulated time: its works, the engine that plays them, the critical path, and the forecast of it.

It asks `rlplan.simulator.costs` for seconds and `rlplan.simulator.memory` for bytes, and has no formula of either.
"""
