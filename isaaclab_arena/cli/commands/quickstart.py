"""``isaaclab-arena quickstart``: write job files to begin with into a directory, and run the first of them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.cli.main import MAINS
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.atomic import write_text

PACKAGES = Path(__file__).parents[3]
"""Where this package and what is installed with it are."""
STARTER = PACKAGES / "isaaclab_arena" / "assets" / "starter"
"""What is written: the job files of the project, beside the models that they name."""

_FIRST = "quickstart.json"


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """Write job files to begin with into a directory, and run quickstart.json: [DIRECTORY] [OPTIONS of the run].

    Files that are there stay as they are. OPTIONS are those of isaaclab-arena run, such as --limit 1.
    """

    directory: tyro.conf.Positional[Path] = Path("arena_quickstart")
    """Directory for the job files and the output of the run."""


def main(argv: Sequence[str]) -> int:
    """Write the job files, run the first one, and return its exit code; ConfigError or StorageError."""
    own = 1 if argv and (not argv[0].startswith("-") or argv[0] in {"-h", "--help"}) else 0
    options = tyro.cli(QuickstartOptions, args=list(argv[:own]), prog="isaaclab-arena quickstart")
    directory = options.directory
    for line in write_starter(directory, STARTER):
        print(plain_text(line), flush=True)
    run = ["--eval_jobs_config", str(directory / _FIRST), "--output_base_dir", str(directory / "outputs")]
    return MAINS.get("run")([*run, *argv[own:]])


def write_starter(directory: Path, starter: Path) -> Iterator[str]:
    """Write the job files that can run here; yield lines for the user. ConfigError or StorageError if it cannot."""
    # An existing file stays. ``starter`` contains the job files in ``jobs``, and their models in ``models``.
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"'{directory}' is no directory; name another one: isaaclab-arena quickstart DIRECTORY")
    for path in sorted((starter / "jobs").glob("*.*")):
        target, text = directory / path.name, with_paths_of(path.read_text(encoding="utf-8"), (starter, PACKAGES))
        # A path that stays relative names a model that is not installed.
        if '"models/' not in text and not target.exists():
            write_text(target, text)
            if path.name == _FIRST:
                yield from (f"left out of {_FIRST}: {line}" for line in leave_out_foreign_jobs(target))
    others = ", ".join(sorted(path.name for path in directory.glob("*.*") if path.name != _FIRST and path.is_file()))
    yield f"{directory} holds {_FIRST}, which runs now, and for isaaclab-arena run --eval_jobs_config: {others}"


def with_paths_of(text: str, roots: Sequence[Path]) -> str:
    """Return a JSON job file with absolute paths for those that exist in one of ``roots``."""

    def located(match: re.Match[str]) -> str:
        found = next((root / match[1] for root in roots if (root / match[1]).exists()), None)
        return match[0] if found is None else json.dumps(str(found))

    return re.sub(r'"([\w.-]+/[\w./-]+)"', located, text)


def leave_out_foreign_jobs(path: Path) -> list[str]:
    """Remove the jobs of a JSON job file that cannot run here; return a line with the reason for each."""
    left_out: dict[str, str] = {}
    for job in load_jobs_file(path, JobDefaults()).jobs:
        try:
            resolve_jobs((job,))
        except ConfigError as error:
            left_out[job.name] = error.problems[0].message
    if left_out:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["jobs"] = [job for job in document["jobs"] if job["name"] not in left_out]
        write_text(path, json.dumps(document, indent=2) + "\n", overwrite=True)
    return [f"{name}: {reason}" for name, reason in left_out.items()]
