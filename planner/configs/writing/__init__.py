"""What an export writes: a plan by a framework's keys, imported again before anybody gets it."""
