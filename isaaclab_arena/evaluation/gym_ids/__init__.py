"""Environments under ids of Gymnasium's and of Gym's registries, for programs that make theirs by such an id."""
