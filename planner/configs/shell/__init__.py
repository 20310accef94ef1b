"""Launch scripts, evaluated without running anything: which commands they would start with which words.

What cannot be evaluated is kept as it is written, with its line.
"""
