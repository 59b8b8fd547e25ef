"""What was done to the program as a stranger would do it, one file per kind of attack."""
