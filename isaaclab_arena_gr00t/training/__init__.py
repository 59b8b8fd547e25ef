"""Trains GR00T models on recorded demonstrations."""
