"""What every worker runs, in its own interpreter: it reads requests and writes answers."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.
