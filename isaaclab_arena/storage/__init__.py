"""Files on disk: names, layout, and writes that survive a crash."""
