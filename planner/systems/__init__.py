"""What systems of the field make of a job: their offers, tuned and forecast by our simulator.

Published figures are the business of `evals`.
"""
