"""Stands in for vla-eval where that is not installed: the names that its benchmark classes and their callers use."""
