"""A model as its Hugging Face `config.json` says it: keys, layers, families, towers, and what cannot be.

No job: what a job says beside its models is read one folder up.
"""
