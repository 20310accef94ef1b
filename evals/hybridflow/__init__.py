"""HybridFlow's evaluation (Sheng et al. 2025, EuroSys, arXiv:2409.19256): its points and its claims.

Systems and jobs that its tables need too are in `rlplan.evals.settings`.
"""
