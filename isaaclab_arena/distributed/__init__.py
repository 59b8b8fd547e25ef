"""Who this process is among the ranks, which device it uses, and how ranks learn of each other."""
