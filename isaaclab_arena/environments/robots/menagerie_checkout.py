"""Find a checkout of MuJoCo Menagerie through its environment variable."""

import os
from collections.abc import Mapping

from isaaclab_arena.paths import expanded


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory of a checkout of MuJoCo Menagerie, None if MENAGERIE_ROOT is not set."""
    return expanded(environ.get("MENAGERIE_ROOT")) or None
