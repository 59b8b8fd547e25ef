"""Handle signals, end processes whose steps hang, and put back what jobs change of the process."""
