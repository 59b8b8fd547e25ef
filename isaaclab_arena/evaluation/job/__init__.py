"""One job on one rank: build, run, report."""
