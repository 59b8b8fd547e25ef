class GrootConfig:
    """The settings of a type that is not the policy's."""
