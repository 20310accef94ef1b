"""Facts: device sheets, model sheets, measured tables and the fits over them.

Every number knows its source. Only `rlplan.profiles.probes`, which measures the machine it runs on,
needs torch; nothing but the command line imports it.
"""
