"""Rules of verl by what they look at; `planner/configs/rules/verl.py` lists them."""
