"""Training GR00T models on recorded demonstrations."""
