"""Checkpoints: saved, evaluated, exported."""
