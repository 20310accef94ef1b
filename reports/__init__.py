"""Pages: HTML, plots, tables and traces drawn from forecasts and runs.

A report draws a trace without asking where it comes from.
"""
