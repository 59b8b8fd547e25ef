"""``isaaclab-arena new``: write a skeleton of a policy, a task or a robot that works, with its test."""

import importlib.util
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.storage.atomic import write_text

SKELETONS = Path(__file__).parents[2] / "assets" / "skeletons"
"""One directory for each kind; in names of files and in texts ``my_name`` stands for the name."""


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Write a skeleton that works, with a test and a job file, into a new directory NAME."""

    kind: tyro.conf.Positional[Literal["policy", "task", "robot"]]
    """Kind of the skeleton."""
    name: tyro.conf.Positional[str]
    """Its name, in lower case with underscores, such as my_policy."""


def main(argv: Sequence[str]) -> int:
    """Write the skeleton, and show the next commands; ConfigError for a bad name, StorageError if not writable."""
    options = tyro.cli(NewOptions, args=list(argv), prog="isaaclab-arena new")
    kind, name, directory = options.kind, options.name, Path(options.name)
    if directory.exists():
        raise ConfigError(f"'{directory}' is there already; nothing was written", key="NAME")

    # Refuse a name that no module can have, or that is already taken.
    problem = None
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None or keyword.iskeyword(name):
        problem = f"'{name}' cannot be the name of a module; use lower case, digits and underscores: my_{kind}"
    elif {"policy": POLICIES, "task": ENVIRONMENTS, "robot": EMBODIMENTS}[kind].is_listed(name):
        problem = f"there is a {kind} called '{name}' already; choose another name"
    elif importlib.util.find_spec(name) is not None:
        problem = f"there is a module called '{name}' already, which yours would hide; choose another name"
    if problem:
        raise ConfigError(problem, key="NAME")

    files = write_skeleton(kind, name, directory)
    print(plain_text(f"wrote {directory}/: {', '.join(path.name for path in files)}"))
    print(plain_text(f"next: cd {directory}"))
    # The entry points of a task are known once its package is installed.
    install = ["python -m pip install --no-deps --editable ."] if kind == "task" else []
    for line in ("python -m pytest", *install, "isaaclab-arena run --eval_jobs_config jobs.json"):
        print(f"      {line}")
    return 0


def write_skeleton(kind: str, name: str, directory: Path) -> list[Path]:
    """Write the files of a skeleton (``policy``, ``task`` or ``robot``), and return their paths; StorageError."""
    in_camel_case = "".join(part.capitalize() for part in name.split("_"))

    def named(text: str) -> str:
        return text.replace("my_name", name).replace("MyName", in_camel_case).replace("MY_NAME", name.upper())

    files = []
    for template in sorted((SKELETONS / kind).glob("*.txt")):
        path = directory / named(template.name.removesuffix(".txt"))
        write_text(path, named(template.read_text(encoding="utf-8")))
        files.append(path)
    return files
