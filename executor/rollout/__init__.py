"""Generation: engines, sampling, and what they refuse.

It knows no advantage and no loss.
"""
