"""The parts of one rank that learn: environment, networks, algorithm."""
