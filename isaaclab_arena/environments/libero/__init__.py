"""The suites of LIBERO, played from a checkout of the user's own, in workers."""
