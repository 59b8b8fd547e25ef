"""Physics by MuJoCo on the CPU."""
