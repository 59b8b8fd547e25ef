"""The worker program, which runs in interpreters that have numpy, and mostly Gymnasium, but not this package."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.
