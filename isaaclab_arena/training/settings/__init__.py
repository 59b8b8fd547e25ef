"""Settings of a training run: task file, user's file and command line."""
