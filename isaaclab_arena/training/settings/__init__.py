"""Read the settings of a training run from its task file, the user's file and the command line."""
