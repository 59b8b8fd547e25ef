"""The included policies, and the table of their names."""
