class Dataset:
    """What no policy needs."""
