"""Models in other processes: what travels to and from them, and the connections it travels on."""
