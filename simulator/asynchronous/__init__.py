"""Generation that hands responses on as they end, beside training that learns from them, in simulated time.

It plays the flows that hand samples on one by one (`rlplan.plan.Flow`) with the works that `rlplan.simulator.timeline`
costs, on its engine; it has no formula of seconds or bytes of its own.
"""
