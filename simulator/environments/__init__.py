"""Environments in simulated time: how long steps wait for host cores and workers.

Nothing of models or engines: who answers between steps stands in `rlplan.simulator.generation`.
"""
