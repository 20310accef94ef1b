"""Rows of tables as text, shared by pages, their Markdown versions and the terminal.

It knows no HTML and draws nothing.
"""
