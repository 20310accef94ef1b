"""Episodes on a generating rank: sessions of the engine, the playing of turns, processes of environments.

Environments themselves are in `executor/environments/`.
"""
