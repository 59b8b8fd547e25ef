"""Recorded episodes run again and compared step by step."""
