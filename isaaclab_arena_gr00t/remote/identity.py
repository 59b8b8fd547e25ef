"""What a policy server says of the model that it serves, in one line that can be kept and compared."""

import hashlib
from collections.abc import Mapping

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.json_values import json_line

_MAX_LENGTH = 400


def identity_line(stated: object) -> str:
    """Return what a server has stated as a line of JSON; `UNKNOWN` where it states nothing.

    Args:
        stated: A map from any server; of a long one the beginning is kept, and a hash of all.
    """
    if not isinstance(stated, Mapping) or not stated:
        return UNKNOWN
    line = json_line({str(name): stated[name] for name in sorted(stated, key=str)})
    if len(line) <= _MAX_LENGTH:
        return line
    return f"{line[:_MAX_LENGTH]}… (SHA-256 {hashlib.sha256(line.encode()).hexdigest()})"


def same_server(before: str | None, now: str, *, where: str) -> str:
    """Return what a server states now, if that is what it stated before.

    Args:
        before: What it stated when it was first asked, None if this is the first time.
        now: What it states now.
        where: Its address, for the message.

    Raises:
        PolicyError: If it came back with another model.
    """
    if before is not None and now != before:
        raise PolicyError(
            f"the policy server at {where} came back as another one: it stated {before} and states {now} now; "
            "episodes of both must not count as one policy's"
        )
    return now
