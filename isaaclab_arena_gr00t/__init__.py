"""GR00T policies for the arena: convert observations for a GR00T model, and its chunks into actions."""
