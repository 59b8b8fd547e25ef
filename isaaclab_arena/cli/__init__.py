"""The command line: one program, isaaclab-arena, with its commands."""
