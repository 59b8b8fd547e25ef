"""Build the table with intervals from finished episodes."""
