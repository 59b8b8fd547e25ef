"""Start one process per GPU, and pass on their output and their failures."""
