"""What operations cost where nothing was measured: rooflines of sheets with fitted efficiencies.

It reads no profile.
"""
