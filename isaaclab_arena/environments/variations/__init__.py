"""Vary episodes: the catalogue of variations, their options in a job, and their effect on the simulation."""
