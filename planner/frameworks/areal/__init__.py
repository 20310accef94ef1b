"""AReaL: what its configurations need of code."""
