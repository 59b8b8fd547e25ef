"""One process with the networks of a run's policies, which several ranks share."""
