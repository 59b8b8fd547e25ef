"""The programs of environment workers, which run in interpreters that have numpy, and mostly Gymnasium."""

# Workers run it, so nothing here imports this package, and all code is valid in Python 3.9.
