"""What ranks settle before the first episode: output directory, plan, resume, contents of files."""
