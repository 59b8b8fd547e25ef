"""Recordings as LeRobot datasets, and LeRobot datasets as recordings."""
