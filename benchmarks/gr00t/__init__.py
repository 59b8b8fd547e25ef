"""Benchmarks of GR00T policies: queries, start, server, jobs."""
