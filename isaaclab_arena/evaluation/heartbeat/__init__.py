"""Write and read the heartbeats of ranks, which show what each rank does and whether it is alive."""
