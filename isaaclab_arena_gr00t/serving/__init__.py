"""Serve policies of Isaac Lab Arena to other people's evaluation programs, in the protocols that these speak."""
