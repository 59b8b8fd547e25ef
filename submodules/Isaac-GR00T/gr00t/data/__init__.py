"""Embodiments, modalities and their statistics."""
