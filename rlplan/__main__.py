"""`python -m rlplan`: the command, which stands above this room and is looked up by its name."""

from importlib import import_module

if __name__ == "__main__":
    import_module("rlplan_cli.main").main()
