"""Which policy is better: comparisons of jobs, leaderboards, and what changed episodes cost."""
