"""Streaming and asynchronous training, simulated: training learns from responses while others are generated.

The flows that hand samples on one by one (`rlplan.plan.Flow`) run on the engine of `rlplan.simulator.timeline`, with works
that are costed there; no formula of seconds or bytes is here.
"""
