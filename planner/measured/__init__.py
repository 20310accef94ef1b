"""What users measured, beside forecasts: logs and runs, tables of steps, reported outcomes.

Steps are checked and sites calibrated here. Published tables and evaluations stand in `evals/`, which no wheel has.
"""
