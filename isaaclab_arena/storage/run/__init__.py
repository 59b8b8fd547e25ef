"""Read and write the files of a run besides its episodes: plan, attempts, commit lines, job reports, lock."""
