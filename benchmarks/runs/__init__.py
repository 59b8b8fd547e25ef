"""Benchmarks of whole runs: start-up, ranks, recording, memory, tables."""
