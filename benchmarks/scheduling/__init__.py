"""Simulated ranks that take their work by the rules of real ones."""
