"""Tasks with doors, drawers and buttons."""
