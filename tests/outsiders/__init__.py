"""What strangers tried, and what must come of it."""
