"""Benchmarks: programs that measure this package, run as ``python -m benchmarks.<room>.<name>``."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Root of the repository, where benchmarks run."""

RESULTS = ROOT / "benchmarks" / "results"
"""Pages of results."""
