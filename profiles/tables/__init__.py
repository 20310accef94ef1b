"""Measured tables: how a profile lies in files, and how one reads between its points.

It measures nothing and falls back on no sheet.
"""
