"""LIBERO itself: pip's package in the interpreter at LIBERO_PYTHON, or the checkout at LIBERO_PATH."""

import os
from typing import Any

from isaaclab_arena.environments.libero import checkout_at

PYTHON = os.environ.get("LIBERO_PYTHON", "")
LIBERO: Any = checkout_at(None, PYTHON) if PYTHON else None


def files_of(task: str) -> dict[str, str]:
    """Return the files of a task, as workers get them."""
    found = LIBERO.task(task)
    directories = {"package_directory": str(LIBERO.package_directory), "assets_directory": str(LIBERO.assets)}
    return {**directories, "bddl_file": str(found.bddl_file), "init_states_file": str(found.init_states_file)}
