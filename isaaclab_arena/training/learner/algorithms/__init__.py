"""Learning algorithms on rsl_rl's protocol, for any number of ranks."""
