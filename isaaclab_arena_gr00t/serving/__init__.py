"""Serve policies in GR00T's protocol."""
