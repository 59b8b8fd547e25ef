"""Ask a job's policy for clients in other processes: each session has an env slot, and queries are batched."""
