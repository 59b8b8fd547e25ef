"""What may vary from episode to episode: the catalogue, how a job asks for it, and how it reaches the simulation."""
