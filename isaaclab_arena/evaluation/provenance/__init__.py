"""Record the versions, machine and source files that a result comes from."""
