"""What a training is asked to do: task file, user's file and command line."""
