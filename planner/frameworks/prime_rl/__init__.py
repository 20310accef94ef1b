"""prime-rl: what its configurations need of code."""
