"""Evaluate the checkpoints of a training as they appear."""
