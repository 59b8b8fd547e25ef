"""The worker that a benchmark of wires asks."""
