"""What workers of environments answer by, in interpreters that have numpy, and mostly Gymnasium."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.
