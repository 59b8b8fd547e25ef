"""Tells which packages, which revision of them and which physics engine an environment runs on."""

from __future__ import annotations

import json
import pathlib
import platform
import sys
import types
import typing
from importlib import metadata

if typing.TYPE_CHECKING:
    import gymnasium

_ENGINES = ("mujoco", "mujoco_py", "pymunk", "pybullet", "Box2D", "sapien")

# They wrap an engine, and are what an environment imports in its place.
_AROUND_ENGINES = {"dm_control": "mujoco"}


def versions_of(environment: gymnasium.Env, *, alone: bool = False) -> dict[str, str]:
    """Return versions by package, and where they are known ``revision`` and ``engine``.

    Packages that are not installed are left out.

    Args:
        environment: The environment.
        alone: Whether nothing else in this process needs an engine. Then, if the code of the environment names none
            before it is used, those count that are loaded.
    """
    inner = environment.unwrapped
    # One that only passes on what another does names the class of that.
    made_by = getattr(inner, "made_by", type(inner))
    package = made_by.__module__.partition(".")[0]
    found = {"python": platform.python_version()}
    for name in ("gymnasium", "numpy", "mujoco", package, *getattr(inner, "runs_on", ())):
        version = _version(name)
        if version is not None:
            found[name] = version
    commit, engine = revision(package), engine_of(made_by) or (_told(loaded_engines()) if alone else None)
    return {**found, **({"revision": commit} if commit else {}), **({"engine": engine} if engine else {})}


def origin(module: str) -> dict[str, str | None]:
    """Return the file of a module that is imported, and the versions of what provides it, if that is installed."""
    versions = [f"{name} {metadata.version(name)}" for name in _providers(module.partition(".")[0])]
    return {"file": getattr(sys.modules[module], "__file__", None), "versions": ", ".join(versions) or None}


def engine_of(made_by: type) -> str | None:
    """Return the physics engines that the code of an environment uses, such as ``mujoco 3.3.2``; None if none.

    An engine counts if a module imports it that defines the class or a class above it, or that belongs to the same
    package. Gymnasium has environments on several engines, so there only the classes count.
    """
    # MuJoCo leaves a class of its own among Python's built-in names.
    modules = {each.__module__ for each in made_by.__mro__} - {"builtins"}
    package = made_by.__module__.partition(".")[0]
    if package != "gymnasium":
        modules |= {name for name in list(sys.modules) if name.partition(".")[0] == package}
    used = {engine for name in modules for engine in _imported_engines(sys.modules.get(name))}
    return _told(used)


def loaded_engines() -> set[str]:
    """Return the physics engines that this process has imported."""
    return {name.partition(".")[0] for name in list(sys.modules)} & set(_ENGINES)


def _told(engines: set[str]) -> str | None:
    return ", ".join(f"{name} {_version(name) or 'of unknown version'}" for name in sorted(engines)) or None


def revision(package: str) -> str | None:
    """Return the commit that a package was installed from, or that its checkout stands at; None if nothing tells."""
    for distribution in _distributions(package):
        told = distribution.read_text("direct_url.json")
        commit = json.loads(told).get("vcs_info", {}).get("commit_id") if told else None
        if commit:
            return str(commit)
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(pathlib.Path(file).parts):
        return None
    checkouts = [each for each in pathlib.Path(file).resolve().parents if (each / ".git").exists()]
    return commit_at(checkouts[0]) if checkouts else None


def commit_at(checkout: pathlib.Path) -> str | None:
    """Return the commit that a checkout stands at, also one that is a worktree or a submodule; None if nothing tells.

    Changes that were made in it since are not seen.
    """
    git = checkout / ".git"
    try:
        if git.is_file():
            git = checkout / git.read_text().strip()[len("gitdir: ") :]
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        # The branches of a worktree are those of the repository that it belongs to.
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        return _commit_of(head[len("ref: ") :], git) or _commit_of(head[len("ref: ") :], common)
    except OSError:
        return None


def _commit_of(branch: str, git: pathlib.Path) -> str | None:
    if (git / branch).is_file():
        return (git / branch).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines() if (git / "packed-refs").is_file() else []
    return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)


def _imported_engines(module: types.ModuleType | None) -> set[str]:
    """Return the engines of which a module holds anything: a module, a class or a function."""
    tops = set()
    for value in list(vars(module or types.ModuleType("none")).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        top = name.partition(".")[0] if isinstance(name, str) else ""
        tops.add(_AROUND_ENGINES.get(top, top))
    return tops & set(_ENGINES)


def _version(package: str) -> str | None:
    return next((each.version for each in _distributions(package)), None)


def _distributions(package: str) -> list[metadata.Distribution]:
    """Return the distribution of a package's own name, or else those that provide it."""
    try:
        return [metadata.distribution(package)]
    except metadata.PackageNotFoundError:
        return [metadata.distribution(name) for name in _providers(package)]


def _providers(package: str) -> list[str]:
    """Return the distributions that provide a package."""
    return sorted({each.metadata["Name"] for each in metadata.distributions() if _provides(each, package)})


def _provides(distribution: metadata.Distribution, package: str) -> bool:
    declared = (distribution.read_text("top_level.txt") or "").split()
    if declared:
        return package in declared
    # Read as text: an object for each file of all that is installed takes half a second, in every worker.
    installed = (distribution.read_text("RECORD") or "").splitlines()
    return any(line.startswith((f"{package}/", f"{package}.py,")) for line in installed)
