"""Launchers and training scripts in Python: what their arguments are, without running them."""
