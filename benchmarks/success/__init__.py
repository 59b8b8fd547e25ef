"""Benchmarks of how often policies solve tasks."""
