"""SkyRL: what its configurations need of code."""
