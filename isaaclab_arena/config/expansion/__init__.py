"""From one entry of a job file to many jobs: sweeps, and suites of tasks."""
