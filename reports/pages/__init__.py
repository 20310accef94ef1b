"""Whole pages: what a report says, as HTML and Markdown.

It draws no picture and words no table row by itself.
"""
