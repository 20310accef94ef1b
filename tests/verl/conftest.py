"""Where verl is installed (`make test-verl`), its functions are what the executor's are compared with."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
