"""Commands for the first day: job files to begin with, and skeletons of policies, tasks and robots."""
