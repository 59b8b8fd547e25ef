"""Train policies on all ranks, and evaluate them on the same ranks."""
