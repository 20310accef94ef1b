"""verl's fully asynchronous training (docs/advance/fully_async.md): its runs, lengths fitted for them, and its claims."""
