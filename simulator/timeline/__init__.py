"""An iteration in simulated time: its works, their waiting, the critical path, and the forecast of it.

It asks `simulator.costs` for seconds and `simulator.memory` for bytes, and has no formula of either.
"""
