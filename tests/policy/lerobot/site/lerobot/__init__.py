"""Stands in for LeRobot: the names that a worker uses, and a policy whose answers a test can foresee."""
