"""The files that a robot or an object is made of, where they do not come with this package."""

from pathlib import Path

from isaaclab_arena.environments.robots.lookup import find_embodiment
from isaaclab_arena.errors import StorageError
from isaaclab_arena.sim.scene.mjcf_files import files_of
from isaaclab_arena.sim.scene.scene import ASSETS


def robot_files(name: str) -> dict[str, Path]:
    """Return the description of a robot and its MJCF files, by what they are; nothing for those of this package.

    Args:
        name: What the option ``embodiment`` says.

    Raises:
        ConfigError: If there is no such robot.
        StorageError: If a file cannot be read.
    """
    description = {f"robot {Path(name).name}": Path(name)} if name.lower().endswith((".yaml", ".yml")) else {}
    return {**description, **part_files("robot", find_embodiment(name).asset)}


def part_files(what: str, asset: str) -> dict[str, Path]:
    """Return an MJCF file and all that it names, each by its name from the first one's directory on.

    Args:
        what: ``robot`` or ``object``.
        asset: Path of the file; nothing comes of one that belongs to this package.

    Raises:
        StorageError: If a file cannot be read.
    """
    mjcf = (ASSETS / asset).resolve()
    if mjcf.is_relative_to(ASSETS):
        return {}
    try:
        files = files_of(mjcf)
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
    return {f"{what} {_named(file, mjcf.parent)}": file for file in files}


def _named(file: Path, directory: Path) -> str:
    return file.relative_to(directory).as_posix() if file.is_relative_to(directory) else str(file)
