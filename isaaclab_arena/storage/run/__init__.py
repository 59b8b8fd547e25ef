"""The files of a run beside its episodes: plan, attempts, commit lines, job reports, lock."""
