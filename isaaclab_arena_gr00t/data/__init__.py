"""Convert recordings to LeRobot datasets, and LeRobot datasets to recordings."""
