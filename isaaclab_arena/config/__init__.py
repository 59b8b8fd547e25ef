"""Check job files and turn them into frozen dataclasses."""
