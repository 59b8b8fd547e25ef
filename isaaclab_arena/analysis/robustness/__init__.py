"""Say what is left of a policy's success when its episodes are changed, axis by axis."""
