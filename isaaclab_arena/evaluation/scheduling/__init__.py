"""Decide which rank runs which episodes."""
