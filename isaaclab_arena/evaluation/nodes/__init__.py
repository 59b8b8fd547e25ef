"""How nodes without a common directory send their results to rank 0."""
