"""Starting one process per GPU, and passing on what they print and why they fail."""
