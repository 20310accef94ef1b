"""What rooms answer with: forecasts, comparisons, searches, reproductions, as files hold them.

Types only: nothing here computes a forecast or draws a page.
"""
