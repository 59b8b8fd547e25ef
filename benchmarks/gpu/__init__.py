"""Checks and benchmarks that need a GPU, run by `make gpu-check`."""
