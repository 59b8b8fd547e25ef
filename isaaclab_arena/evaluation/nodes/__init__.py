"""Send the results of nodes without the common directory to rank 0."""
