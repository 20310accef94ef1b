"""The controller of modes `streaming` and `async`: responses go through the transfer queue one by one.

What is synchronous, or a whole batch ahead, stands in `rlplan.executor.control.controller` and its loops.
"""
