"""Generation that hands responses on as they end, beside training that learns from them, in simulated time.

It plays modes `streaming` and `async` on the works that `rlplan.simulator.timeline` costs; it has no formula of seconds
or bytes of its own.
"""
