"""What a result comes from: versions, machine, device and source files."""

import ast
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import torch

from isaaclab_arena.storage.contents import Node, Provenance

DISTRIBUTION = "isaaclab-arena-mujoco"
_PACKAGES = (
    DISTRIBUTION,
    "torch",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "numpy",
    "scipy",
    "pandas",
    "h5py",
    "gymnasium",
)
_GIT_TIMEOUT_S = 5.0


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of each installed package that can affect results, `more` included."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        if (version := _version_of(package)) is not None:
            found[package] = version
    return found


@cache
def _version_of(package: str) -> str | None:
    """Return a package's version, None if it is absent. Cached: each look reads a long file."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def package_content(package: str) -> str | None:
    """Return version, revision and file hash of the package behind an import name; None if there is none."""
    # The hash covers the file hashes in the package's record, so a rebuild under the same version is another content.
    providers = _packages_by_import_name().get(package)
    if not providers:
        return None
    contents = []
    for name in sorted(set(providers)):
        found = metadata.distribution(name)
        parts = [f"{name} {found.version}"]
        try:
            origin = json.loads(found.read_text("direct_url.json") or "{}")
        except ValueError:
            origin = {}
        revision = origin.get("vcs_info", {}).get("commit_id") if isinstance(origin, dict) else None
        if revision:
            parts.append(f"commit {revision}")
        files = sorted(
            f"{file.as_posix()} {file.hash.value}"
            for file in found.files or ()
            # The installer's own files differ from one directory to the next.
            if file.hash is not None and ".." not in file.parts and not file.parts[0].endswith(".dist-info")
        )
        if files:
            parts.append(f"files {hashlib.sha256(chr(10).join(files).encode()).hexdigest()[:16]}")
        contents.append(", ".join(parts))
    return "; ".join(contents)


# Cached, because it reads the metadata of all installed packages.
_packages_by_import_name = cache(metadata.packages_distributions)


def git_revision(directory: Path) -> str | None:
    """Return the commit of the checkout of `directory`, with `-dirty` after changes; None without checkout or git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--abbrev=40", "--dirty", "--match="]
    try:
        answer = subprocess.run(  # noqa: S603  a fixed command
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def node() -> Node:
    """Return the machine of this process."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        cpu = platform.processor() or platform.machine()
    else:
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu = models[0] if models else platform.machine()
    return Node(
        host=socket.gethostname(),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=platform.platform(),
    )


def provenance_on(device: torch.device) -> Provenance:
    """Return the provenance of this process's results on a simulation device."""
    return Provenance.of(
        versions(),
        node(),
        # Equal GPUs are interchangeable: the name of a GPU counts, and its index does not.
        device="cpu" if device.type == "cpu" else f"{device.type} ({torch.cuda.get_device_name(device)})",
    )


# Find the source files that determine a class: its module, those of its bases, and their local imports.
#
# Imports are read from the source text, also those inside functions. Nothing is imported to find them, so the answer
# does not depend on the modules that a process has loaded.

_OWN = frozenset({"isaaclab_arena", "isaaclab_arena_gr00t", "arena_wire"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
# Python 3.11 counts the depth of all syntax trees in one place, so concurrent parsing fails now and then.
_PARSER = threading.Lock()


def modules_of_class(found: type) -> list[str]:
    """Return the modules of a class and its bases that are neither this package's nor Python's, each once."""
    names = dict.fromkeys(base.__module__ for base in found.__mro__)
    return [name for name in names if name.partition(".")[0] not in _OWN and _file(name) is not None]


def modules_of_object(found: object) -> list[str]:
    """Return the modules of an object's class, and of the classes and functions in its attributes."""
    names = dict.fromkeys(modules_of_class(type(found)))
    for value in vars(found).values() if hasattr(found, "__dict__") else ():
        if isinstance(value, type):
            names.update(dict.fromkeys(modules_of_class(value)))
        elif callable(value):
            name = getattr(getattr(value, "func", value), "__module__", None)
            if isinstance(name, str) and name.partition(".")[0] not in _OWN and _file(name) is not None:
                names[name] = None
    return list(names)


def is_installed(module: str) -> bool:
    """Whether an imported module belongs to an installed package, not to the user's own files."""
    file = _file(module)
    return file is not None and not _INSTALLED.isdisjoint(file.parts)


def source_files(modules: Iterable[str]) -> dict[str, Path]:
    """Return the source files of modules and of their local imports, recursively, by dotted name."""
    found: dict[str, Path] = {}
    waiting = [(name, file) for name in modules if (file := _file(name)) is not None]
    while waiting:
        name, file = waiting.pop()
        if name in found or name.partition(".")[0] in _OWN:
            continue
        found[name] = file
        # Dotted names count from the directory above the module's top package.
        depth = name.count(".") + (file.name == "__init__.py")
        root = file.parents[min(depth, len(file.parents) - 1)]
        for each in _imports(name, file):
            path = root.joinpath(*each.split("."))
            candidates = path.with_name(f"{path.name}.py"), path / "__init__.py"
            if (beside := next(filter(Path.is_file, candidates), None)) is not None:
                waiting.append((each, beside))
    return dict(sorted(found.items()))


def _file(module: str) -> Path | None:
    """Return the Python file of an imported module, None if it has none or is Python's own."""
    loaded: ModuleType | None = sys.modules.get(module)
    name = getattr(loaded, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py"):
        return None
    file = Path(name).resolve()
    if file.is_relative_to(_STANDARD_LIBRARY) and _INSTALLED.isdisjoint(file.parts):
        return None
    return file


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield every dotted name that a file may import, and its parent packages, whose code runs first."""
    try:
        with _PARSER:
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        # A file that cannot be parsed has no imports, but its content still counts.
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from accumulate(alias.name.split("."), "{}.{}".format)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            # A relative name counts from the package of the file, or from one above it.
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            yield from accumulate(filter(None, base.split(".")), "{}.{}".format)
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
