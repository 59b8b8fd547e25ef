"""Read the options that a policy class declares: by a config class, a parser, a dict, or not at all."""
