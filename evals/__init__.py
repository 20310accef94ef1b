"""Forecasts held against what others published: tables, their readers, whole evaluations, and what they need.

It stands beside `tests/`, in a checkout and in no wheel; it imports the product, which never imports it. A reader is a
file of `tables/` that knows a table by its columns, never by the file's name. Rows that the project holds, each with its
source, lie in `held/`.
"""
