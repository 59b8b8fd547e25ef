"""What one rank trains: environments, networks, algorithm."""
