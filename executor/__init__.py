"""Deeds: the controller, pools, worker groups, engines and losses that carry out a plan on Ray.

The executor reads a plan and answers with a trace in measured time, the same type that the
simulator answers with. The two never import each other.
"""
