"""LIBERO beside other harnesses: the same episodes, played by each in turn."""
