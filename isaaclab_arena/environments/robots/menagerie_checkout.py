"""Where a checkout of MuJoCo Menagerie is: one of the few places that read an environment variable."""

import os
from collections.abc import Mapping


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where a checkout of MuJoCo Menagerie is, None if nobody says."""
    return environ.get("MENAGERIE_ROOT") or None
