"""Training on every rank, with the evaluation of the runner on the same ranks."""
