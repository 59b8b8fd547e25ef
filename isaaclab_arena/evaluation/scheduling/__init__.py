"""Which rank runs which episodes."""
