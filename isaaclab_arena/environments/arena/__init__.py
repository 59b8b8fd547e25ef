"""Environments built from a robot, objects, a scene and a task."""
