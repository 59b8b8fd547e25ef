"""Train GR00T models on recorded demonstrations."""
