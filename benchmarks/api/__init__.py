"""What the Python interface costs."""
