"""A small vision-language-action model behind Isaac-GR00T's public interface.

All its errors are ``ValueError``: the caller gave something that cannot be used.
"""

HONOURED_OPTIONS = frozenset({"noise_seeds", "continued"})
"""Options of a query that ``Gr00tPolicy`` supports."""

_LONGEST = 500


class Gr00tError(ValueError):
    """Base class of all errors that this package raises."""


class EmbodimentError(Gr00tError):
    """An embodiment tag that does not exist, or that the checkpoint does not know."""


class CheckpointError(Gr00tError):
    """A directory that holds no checkpoint of this package, or one that must not be loaded."""


class ObservationError(Gr00tError):
    """An observation that does not match the modality configuration of its embodiment."""


class ActionError(Gr00tError):
    """Actions that do not match the modality configuration of their embodiment, or are not finite."""


def plain(text: object) -> str:
    """Return at most 500 characters of a text, without those that could control a terminal."""
    words = str(text)
    shown = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in shown)
