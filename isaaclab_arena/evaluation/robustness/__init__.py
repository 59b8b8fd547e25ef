"""Make the jobs that show how much of a policy's success is left when its episodes are changed."""
