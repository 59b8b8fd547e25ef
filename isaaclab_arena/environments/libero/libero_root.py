"""Find a checkout of LIBERO through its environment variable."""

import os
from collections.abc import Mapping


def libero_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory of a checkout of LIBERO, None if LIBERO_PATH is not set."""
    return environ.get("LIBERO_PATH") or None
