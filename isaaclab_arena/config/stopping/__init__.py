"""The questions that a job file asks: which of two jobs is better, and whether a job reaches a rate."""
