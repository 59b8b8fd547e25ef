"""Run jobs: the loop, one job, one rank's jobs, and the two runners."""
