"""Run the ranks of an evaluation on the nodes of a Ray cluster."""
