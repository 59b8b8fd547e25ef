"""What a peer says, for people to read."""

_LONGEST = 500


def plain(text: object) -> str:
    """Return text without what could steer a terminal or fill a log.

    Line breaks and control characters are replaced, and what is longer than 500 characters is cut.

    Args:
        text: What a peer sent, or an error that may repeat it.
    """
    words = str(text)
    shown = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in shown)
