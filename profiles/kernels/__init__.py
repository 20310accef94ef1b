"""What kernels take on an architecture: constants fitted to operator tables, and the formulas they go into.

It knows no device's sheet and no measured profile.
"""
