"""Observers that write what happened to disk."""
