"""Environments, made of an embodiment, objects, a scene and a task."""
