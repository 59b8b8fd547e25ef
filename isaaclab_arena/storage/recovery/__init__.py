"""Find what a crash leaves in a run's directory, and repair it or set it aside."""
