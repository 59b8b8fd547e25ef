"""Benchmarks of whole runs: start-up, ranks, scheduling, recording, memory, tables."""
