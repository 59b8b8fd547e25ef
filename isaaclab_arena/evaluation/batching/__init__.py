"""On how many env slots a policy is asked, and whether its answers depend on their places."""
