"""The robots, one file each."""
