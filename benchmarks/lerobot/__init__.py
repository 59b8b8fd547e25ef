"""Measure policies of LeRobot played by this program, beside LeRobot's own programs."""
