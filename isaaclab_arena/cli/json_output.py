"""What commands print with ``--json``: one document on stdout; what is for people goes to stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from isaaclab_arena.storage.disk import json_text


@contextmanager
def stdout_for_json(*, wanted: bool) -> Iterator[None]:
    """Redirect output of a ``with`` block to stderr if a script wants stdout for JSON alone."""
    if not wanted:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def print_json(document: Any) -> None:
    """Print one JSON document, indented: plain values, dataclasses as objects, NaN as null."""
    print(json_text(document), end="", flush=True)
