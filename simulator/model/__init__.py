"""What a model computes, holds and exchanges on one device: operators, parameters, activations.

It prices nothing: seconds are the business of `rlplan.simulator.costs`.
"""
