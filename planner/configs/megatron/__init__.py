"""Command lines of Megatron's flags with those of a rollout beside them, as slime has them and what was forked from it.

Read as a run (`reading.py`), with the model that flags write out (`model.py`), asked for what holds only at run time
(`rules.py`), and written (`writing.py`). What one framework has otherwise stands in its own folder.
"""
