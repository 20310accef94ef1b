"""Pictures: plots, timelines and drawings as SVG, in one style.

It decides nothing about what a page says.
"""
