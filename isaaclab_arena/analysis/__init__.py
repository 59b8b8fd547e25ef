"""Policies against each other: comparisons of jobs, leaderboards, and the cost of changed episodes."""
