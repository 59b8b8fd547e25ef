"""Benchmarks of physics and cameras on the CPU."""
