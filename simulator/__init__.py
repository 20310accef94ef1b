"""Predictions: costs, memory, network, generation, pipelines and the engine that plays a plan.

The simulator reads a plan and answers with a trace in simulated time, the same type that a run
on real devices leaves behind.
"""
