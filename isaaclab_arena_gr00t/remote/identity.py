"""Write a policy server's description of its model, in one line."""

import hashlib
from collections.abc import Mapping

from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.json_values import json_line

_MAX_LENGTH = 400


def identity_line(stated: object) -> str:
    """Return a server's description as a line of JSON; `UNKNOWN` if it gives none.

    Args:
        stated: The description by any server; a long one is cut, with a hash of the whole.
    """
    if not isinstance(stated, Mapping) or not stated:
        return UNKNOWN
    line = json_line({str(name): stated[name] for name in sorted(stated, key=str)})
    if len(line) <= _MAX_LENGTH:
        return line
    return f"{line[:_MAX_LENGTH]}… (SHA-256 {hashlib.sha256(line.encode()).hexdigest()})"
