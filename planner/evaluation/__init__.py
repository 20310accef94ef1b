"""Forecasts held against measurements that others published: tables, their errors, whole evaluations.

A reader is a file of `tables/` that knows a table by its columns, never by the file's name. Rows that the
project holds, each with its source, lie in `held/`. No search and no forecast depends on anything here.
"""
