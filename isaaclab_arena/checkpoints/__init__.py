"""Find the checkpoints of a training, and tell without loading them whether they are complete."""
