"""Film episodes of a run that is over, from their recordings."""
