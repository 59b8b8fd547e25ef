"""Saves, evaluates and exports checkpoints."""
