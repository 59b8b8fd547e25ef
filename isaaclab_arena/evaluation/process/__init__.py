"""Handle signals, and end processes whose steps hang."""
