"""Trains policies on all ranks, and evaluates them on the same ranks."""
