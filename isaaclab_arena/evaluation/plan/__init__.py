"""What was asked: job files become a checked plan of jobs and episodes."""
