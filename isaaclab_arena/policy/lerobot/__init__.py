"""Policies of LeRobot, which run in workers of LeRobot's own interpreter."""
