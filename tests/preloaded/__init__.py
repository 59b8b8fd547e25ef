"""A Python that has loaded everything already, for tests that start programs and are not about starting them."""
