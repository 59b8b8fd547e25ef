"""What a policy class says its options are: by a config class, to a parser, with a dict, or not at all."""
