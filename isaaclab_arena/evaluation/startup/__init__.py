"""Prepare a run before its first episode: output directory, plan, resume, contents of files."""
