"""Turn job files into a checked plan of jobs and episodes."""
