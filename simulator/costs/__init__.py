"""What operators, passes, exchanges, calls and transitions cost, in seconds by cause.

One list of operators per layer (`rlplan.simulator.model`) is priced by the facts of a device; it plays nothing
and sizes no memory.
"""
