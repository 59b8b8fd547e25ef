"""Find the files of a robot or an object that do not come with this package."""

from pathlib import Path

from isaaclab_arena.environments.robots.lookup import find_embodiment
from isaaclab_arena.errors import StorageError
from isaaclab_arena.sim.scene.mjcf_files import files_of
from isaaclab_arena.sim.scene.scene import ASSETS


def robot_files(name: str) -> dict[str, Path]:
    """Return the files of a robot by their role: its description and MJCF files; none for robots of this package.

    Args:
        name: Value of the option ``embodiment``.

    Raises:
        ConfigError: If there is no such robot.
        StorageError: If a file cannot be read.
    """
    description = {f"robot {Path(name).name}": Path(name)} if name.lower().endswith((".yaml", ".yml")) else {}
    return {**description, **part_files("robot", find_embodiment(name).asset)}


def part_files(what: str, asset: str) -> dict[str, Path]:
    """Return an MJCF file and all files that it names, by their path relative to its directory.

    Args:
        what: ``robot``, ``object`` or what it is called in the scene.
        asset: Path of the file; a file of this package gives nothing.

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
