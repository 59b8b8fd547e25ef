"""Clean a peer's text for display."""

_LONGEST = 500


def plain(text: object) -> str:
    """Return text without characters that could control a terminal or flood a log.

    Line breaks and control characters are replaced, and the text is cut after 500 characters.

    Args:
        text: Text of a peer, or of an error that may repeat it.
    """
    words = str(text)
    shown = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in shown)
