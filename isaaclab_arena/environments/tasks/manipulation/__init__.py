"""Tasks in which an arm moves loose objects."""
