"""GR00T policies for the arena: what an environment shows becomes what a GR00T model takes, and its chunks actions."""
