"""Settings of published runs as jobs, plans and engines that the simulator forecasts.

No published value is here: rows are read in `rlplan.evals.tables`.
"""
