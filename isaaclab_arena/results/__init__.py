"""From finished episodes to a table with intervals."""
