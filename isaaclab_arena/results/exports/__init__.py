"""Runs written as other systems write theirs, for the tools that read those."""
