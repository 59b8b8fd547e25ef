"""What workers of environments answer by, in interpreters that have numpy, and mostly Gymnasium."""

# Workers run it, so nothing here imports this package, and all code is valid in Python 3.9.
