"""Robots of MuJoCo Menagerie: MJCF files from a checkout or its package, with our descriptions."""

import importlib
import importlib.util
from pathlib import Path

from isaaclab_arena.environments.robots.described import described_embodiment, menagerie_root
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.sim.scene import ASSETS

_DESCRIPTIONS = ASSETS / "robots" / "menagerie"
_PACKAGE = "mujoco_menagerie"


def menagerie_embodiment(name: str) -> Embodiment:
    """Return a Menagerie robot by its directory, such as ``franka_emika_panda``; ConfigError if it is missing."""
    descriptions = {path.stem: path for path in _DESCRIPTIONS.glob("*.yaml")}
    if name not in descriptions:
        hint = did_you_mean(name, descriptions)
        raise ConfigError(
            f"no description of the robot '{name}' of MuJoCo Menagerie{hint}; any other is used through a description "
            f"of your own, as docs/how_to/robots.md shows"
        )

    # A checkout comes before the package, which is optional.
    root = menagerie_root()
    if root is not None:
        directory = Path(root) / name
        if not directory.is_dir():
            raise ConfigError(f"MENAGERIE_ROOT is '{root}', which holds no directory '{name}'")
    elif importlib.util.find_spec(_PACKAGE) is None:
        raise ConfigError(
            f"the files of '{name}' are not here: set MENAGERIE_ROOT to a checkout of MuJoCo Menagerie, or install "
            f"mujoco-menagerie, which downloads them"
        )
    else:
        package = importlib.import_module(_PACKAGE)
        try:
            directory = Path(package.get(name).path())
        except package.MenagerieError as error:
            raise ConfigError(f"mujoco-menagerie cannot provide '{name}': {error}") from error
    return described_embodiment(descriptions[name], directory=directory)
