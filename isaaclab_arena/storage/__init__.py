"""Files on disk: their names, their layout, and writing them so that a crash loses nothing."""
