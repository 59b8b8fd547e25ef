"""What also runs in other interpreters, run as a directory: they have numpy and Gymnasium, but not this package."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.
