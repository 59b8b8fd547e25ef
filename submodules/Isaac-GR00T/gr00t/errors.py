"""Define this package's errors. All are ``ValueError``: the caller gave something that cannot be used."""


class Gr00tError(ValueError):
    """Base class of all errors that this package raises."""


class EmbodimentError(Gr00tError):
    """An embodiment tag that does not exist, or that a checkpoint was not made for."""


class CheckpointError(Gr00tError):
    """A directory that holds no checkpoint of this package, or one that must not be loaded."""


class ObservationError(Gr00tError):
    """An observation that does not match the modality configuration of its embodiment."""


class ActionError(Gr00tError):
    """Actions that do not match the modality configuration of their embodiment, or are not finite."""
