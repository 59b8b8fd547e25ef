"""The packages, their revision and the physics engine that an environment runs on."""

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

# Wrappers of an engine, which environments import in its place.
_AROUND_ENGINES = {"dm_control": "mujoco"}


def versions_of(environment: gymnasium.Env, *, alone: bool = False) -> dict[str, str]:
    """Return versions by package, and ``revision`` and ``engine`` if known; packages not installed are left out."""
    inner = environment.unwrapped
    # A wrapper environment names the class of the wrapped one in ``made_by``.
    made_by = getattr(inner, "made_by", type(inner))
    package = made_by.__module__.partition(".")[0]
    found = {"python": platform.python_version()}
    for name in ("gymnasium", "numpy", "mujoco", package, *getattr(inner, "runs_on", ())):
        version = _version(name)
        if version is not None:
            found[name] = version
    commit, engine = revision(package), engine_of(made_by)
    if alone and not engine:
        # No other code in this process uses an engine, so the loaded ones count.
        engine = _told({name.partition(".")[0] for name in list(sys.modules)} & set(_ENGINES))
    return {**found, **({"revision": commit} if commit else {}), **({"engine": engine} if engine else {})}


def origin(module: str) -> dict[str, str | None]:
    """Return the file of an imported module, and the versions of its distributions if installed."""
    versions = [f"{name} {metadata.version(name)}" for name in _providers(module.partition(".")[0])]
    return {"file": getattr(sys.modules[module], "__file__", None), "versions": ", ".join(versions) or None}


def engine_of(made_by: type) -> str | None:
    """Return the physics engines of an environment's code, such as ``mujoco 3.3.2``; None without one."""
    # MuJoCo adds a class to Python's built-in names.
    modules = {each.__module__ for each in made_by.__mro__} - {"builtins"}
    package = made_by.__module__.partition(".")[0]
    # An engine counts if a module imports it that defines the class or a base class, or that is in the same package.
    # Gymnasium has environments on several engines, so there only the classes count.
    if package != "gymnasium":
        modules |= {name for name in list(sys.modules) if name.partition(".")[0] == package}

    # A module imports an engine if it holds a module, a class or a function of it.
    used = set()
    for module in modules:
        for value in list(vars(sys.modules.get(module) or types.ModuleType("none")).values()):
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            top = name.partition(".")[0] if isinstance(name, str) else ""
            used.add(_AROUND_ENGINES.get(top, top))
    return _told(used & set(_ENGINES))


def _told(engines: set[str]) -> str | None:
    return ", ".join(f"{name} {_version(name) or 'of unknown version'}" for name in sorted(engines)) or None


def revision(package: str) -> str | None:
    """Return the commit of a package's installation or checkout; None if it is unknown."""
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
    """Return the commit of a checkout, worktree or submodule, without later changes; None if it is unknown."""
    git = checkout / ".git"
    try:
        if git.is_file():
            git = checkout / git.read_text().strip()[len("gitdir: ") :]
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        # A worktree shares the branches of its repository.
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        return _commit_of(head[len("ref: ") :], git) or _commit_of(head[len("ref: ") :], common)
    except OSError:
        return None


def _commit_of(branch: str, git: pathlib.Path) -> str | None:
    if (git / branch).is_file():
        return (git / branch).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines() if (git / "packed-refs").is_file() else []
    return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)


def _version(package: str) -> str | None:
    return next((each.version for each in _distributions(package)), None)


def _distributions(package: str) -> list[metadata.Distribution]:
    """Return the distribution with a package's own name, or else those that provide it."""
    try:
        return [metadata.distribution(package)]
    except metadata.PackageNotFoundError:
        return [metadata.distribution(name) for name in _providers(package)]


def _providers(package: str) -> list[str]:
    """Return the distributions that provide a package."""
    found = set()
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        if declared:
            is_provider = package in declared
        else:
            # Read as text: one object per installed file would take half a second, in every worker.
            installed = (distribution.read_text("RECORD") or "").splitlines()
            is_provider = any(line.startswith((f"{package}/", f"{package}.py,")) for line in installed)
        if is_provider:
            found.add(distribution.metadata["Name"])
    return sorted(found)
