"""Choices: placements, allocations and layouts, scored by the simulator; checks and completion of plans."""
