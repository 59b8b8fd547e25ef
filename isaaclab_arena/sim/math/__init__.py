"""Rotations and inverse kinematics for batches."""
