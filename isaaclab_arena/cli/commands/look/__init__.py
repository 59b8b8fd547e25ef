"""Commands that show what may be run, and how it looks."""
