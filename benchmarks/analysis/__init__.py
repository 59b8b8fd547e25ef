"""Benchmarks of comparing, deciding and showing: how long it takes, and how often it is wrong."""
