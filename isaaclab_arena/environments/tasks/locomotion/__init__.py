"""Tasks of legged robots."""
