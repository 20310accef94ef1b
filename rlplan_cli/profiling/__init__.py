"""What a profile measures beyond one process: reward functions as a worker calls them, and nodes of a Ray cluster.

The executor and the probes do not know each other: here one is handed to the other. Nothing here knows a terminal,
for some of it runs on the nodes themselves.
"""
