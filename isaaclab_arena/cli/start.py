"""``isaaclab-arena new`` and ``quickstart``: write a skeleton with its test, or job files to begin with."""

import importlib.util
import json
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.storage.atomic import write_text

# Write a skeleton of a policy, a task or a robot that works, with its test.

SKELETONS = Path(__file__).parents[1] / "assets" / "skeletons"
"""One directory for each kind; in names of files and in texts ``my_name`` stands for the name."""


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Write a skeleton that works, with a test and a job file, into a new directory NAME."""

    kind: tyro.conf.Positional[Literal["policy", "task", "robot"]]
    """Kind of the skeleton."""
    name: tyro.conf.Positional[str]
    """Its name, in lower case with underscores, such as my_policy."""


def new(argv: Sequence[str]) -> int:
    """Write the skeleton, and show the next commands; ConfigError for a bad name, StorageError if not writable."""
    options = read_words(NewOptions, argv, program="isaaclab-arena new")
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
    for line in ("python -m pytest", *install, "isaaclab-arena run jobs.json"):
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


# Write job files to begin with into a directory, and run the first of them.

PACKAGES = Path(__file__).parents[2]
"""Directory of this package and of those that are installed with it."""
STARTER = PACKAGES / "isaaclab_arena" / "assets" / "starter"
"""The written files: the job files of the project, beside the models that they name."""

_FIRST = "quickstart.json"


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """Write job files to begin with into a directory, and run quickstart.json: [DIRECTORY] [OPTIONS of the run].

    Files that are there stay as they are. OPTIONS are those of isaaclab-arena run, such as --limit 1.
    """

    directory: tyro.conf.Positional[Path] = Path("arena_quickstart")
    """Directory for the job files and the output of the run."""


def quickstart(argv: Sequence[str]) -> int:
    """Write the job files, run the first one, and return its exit code; ConfigError or StorageError."""
    from isaaclab_arena.evaluation import eval_runner  # noqa: PLC0415  `new` needs none of it

    # Help is shown wherever the user asks for it, before anything is written.
    argv = ["--help"] if {"-h", "--help"} & {*argv} else argv
    own = 1 if argv and (not argv[0].startswith("-") or argv == ["--help"]) else 0
    options = read_words(QuickstartOptions, argv[:own], program="isaaclab-arena quickstart")
    directory = options.directory
    run = ["--eval_jobs_config", str(directory / _FIRST), "--output_base_dir", str(directory / "outputs"), *argv[own:]]
    # A misspelt option is refused before anything is written.
    eval_runner.read_options(run, "isaaclab-arena quickstart")
    for line in write_starter(directory, STARTER):
        print(plain_text(line), flush=True)
    return eval_runner.main(run, typed_as="isaaclab-arena quickstart")


def write_starter(directory: Path, starter: Path) -> Iterator[str]:
    """Write the job files that can run here; yield lines for the user. ConfigError or StorageError if it cannot."""
    # An existing file stays. ``starter`` contains the job files in ``jobs``, and their models in ``models``.
    from isaaclab_arena.config.loading import load_jobs_file  # noqa: PLC0415  `new` needs none of it
    from isaaclab_arena.evaluation.validation import resolve_jobs  # noqa: PLC0415

    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"'{directory}' is no directory; name another one: isaaclab-arena quickstart DIRECTORY")
    for path in sorted((starter / "jobs").glob("*.*")):
        # Paths that exist below the starter or beside this package become absolute.
        target, text = directory / path.name, path.read_text(encoding="utf-8")
        for given in dict.fromkeys(re.findall(r'"([\w.-]+/[\w./-]+)"', text)):
            found = next((root / given for root in (starter, PACKAGES) if (root / given).exists()), None)
            text = text if found is None else text.replace(f'"{given}"', json.dumps(str(found)))
        # A path that stays relative names a model that is not installed.
        if '"models/' in text or target.exists():
            continue
        write_text(target, text)
        if path.name == _FIRST:
            # Jobs that cannot run here are left out of the file that runs.
            left_out: dict[str, str] = {}
            for job in load_jobs_file(target).jobs:
                try:
                    resolve_jobs((job,))
                except ConfigError as error:
                    left_out[job.name] = error.problems[0].message
            if left_out:
                document = json.loads(text)
                document["jobs"] = [job for job in document["jobs"] if job["name"] not in left_out]
                write_text(target, json.dumps(document, indent=2) + "\n", overwrite=True)
            yield from (f"left out of {_FIRST}: {name}: {reason}" for name, reason in left_out.items())
    others = ", ".join(sorted(path.name for path in directory.glob("*.*") if path.name != _FIRST and path.is_file()))
    yield f"{directory} holds {_FIRST}, which runs now, and for isaaclab-arena run: {others}"
