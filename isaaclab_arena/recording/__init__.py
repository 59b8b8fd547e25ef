"""Observers that write episodes to disk: recordings, videos, contact sheets."""
