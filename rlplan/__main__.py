"""`python -m rlplan`: the command."""

from rlplan_cli.main import main

if __name__ == "__main__":
    main()
