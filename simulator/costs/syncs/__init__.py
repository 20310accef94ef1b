"""Bringing the actor's weights from training to generation: transitions, and frameworks' own ways.

What they hold is in `simulator/memory/`.
"""
