"""One file for each command of isaaclab-arena."""
