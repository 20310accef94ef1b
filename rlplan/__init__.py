"""The vocabulary of rlplan: frozen types, units, errors and the strict reading of files.

Every other room speaks these words; this one imports none of them.
"""

__version__ = "0.1.0"
