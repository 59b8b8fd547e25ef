"""What was asked: job files, checked and turned into frozen dataclasses."""
