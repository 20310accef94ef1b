"""Episodes on one replica: turns of the model between steps of environments.

Environments themselves, and the cores that they wait for, are in `simulator/environments/`.
"""
