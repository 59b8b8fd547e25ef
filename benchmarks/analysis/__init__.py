"""Benchmarks of comparing and deciding: how long it takes, and how often it is wrong."""
