"""``isaaclab-arena new``, ``quickstart`` and ``validate``: write skeletons and job files, and check job files."""

import importlib.util
import json
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro

from isaaclab_arena.cli.main import MAINS, print_json
from isaaclab_arena.config import arena, loading, schema
from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, SUITES
from isaaclab_arena.errors import ConfigError, Problem, problems_into, refuse
from isaaclab_arena.evaluation.validation import resolve_jobs, robustness_arms
from isaaclab_arena.logs import plain_text
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.tracking.trackers import check_trackers

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
    yield f"{directory} holds {_FIRST}, which runs now, and for isaaclab-arena run --eval_jobs_config: {others}"


# Check job files without running anything.


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Check job files without running anything: every job, every option, all problems at once."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Job files and experiments, JSON or YAML; for experiments also overrides such as runs.NAME.num_rebuilds=2."""
    num_steps: int | None = None
    """Control steps of jobs without steps or episodes of their own."""
    num_episodes: int | None = None
    """Episodes of jobs without steps or episodes of their own."""
    num_envs: int | None = None
    """Env slots of jobs without a number of their own."""
    seed: int | None = None
    """Seed of jobs without their own."""
    limit: Count | None = None
    """Check and count each job as this option of a run would limit it."""
    deterministic: bool = False
    """Also check that every job's num_envs fits into the fixed batch of --deterministic."""
    policy_batch: int = 64
    """Size of that batch."""
    no_import: bool = False
    """Import no module and run no interpreter that a job file names: allow registered names only."""
    json: bool = False
    """Print the result as JSON: files, and problems with file, job, key and message."""


def validate(argv: Sequence[str]) -> int:
    """Check the files named in ``argv``; ConfigError lists every problem of every file."""
    options = tyro.cli(ValidateOptions, args=argv, prog="isaaclab-arena validate")
    defaults = schema.JobDefaults(
        num_steps=options.num_steps, num_episodes=options.num_episodes, num_envs=options.num_envs, seed=options.seed
    )
    refuse(wrong_numbers(options))
    # Words for experiments, runs.NAME.num_rebuilds=2, share the positional argument with the files.
    overrides = [str(path) for path in options.files if arena.is_override(str(path))]
    files = [path for path in options.files if not arena.is_override(str(path))]
    if not files:
        raise ConfigError("name at least one job file: isaaclab-arena validate jobs.json")

    # The facts of each file without a problem.
    found: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for path in files:
        with problems_into(problems):
            arms = partial(robustness_arms, may_import=not options.no_import)
            read = loading.load_jobs_file(path, defaults, overrides=overrides, suites=SUITES, arms=arms)
            # A file with problems continues here, so that the readable part of its jobs is checked too.
            jobs_file = loading.limited(read, options.limit)
            known = list(jobs_file.problems)
            with problems_into(known):
                check_trackers(jobs_file.tracking, key="tracking", file=jobs_file.path)
            jobs = resolve_jobs(
                jobs_file.readable_jobs,
                file=jobs_file.path,
                known=known,
                policy_batch=options.policy_batch if options.deterministic else None,
                may_import=not options.no_import,
            )
            configs = [job.config for job in jobs]
            # Remarks on runnable jobs, with the jobs of each line.
            told: dict[str, list[str]] = {}
            for job in jobs:
                lines = [str(job.connections)] if job.connections is not None else []
                if job.described is not None and job.num_played is not None:
                    lines.append(
                        f"plays {job.num_played} episodes of {job.described.source}, which holds {job.described.holds}"
                    )
                for line in (*lines, *(f"warning: {doubt}" for doubt in job.doubts)):
                    told.setdefault(line, []).append(job.config.name)
            facts = {
                "file": jobs_file.path,
                "jobs": [config.name for config in configs],
                "episodes": sum(job.config.num_episodes or job.num_played or 0 for job in jobs),
                "environments": sorted({config.environment for config in configs}),
                "policies": sorted({config.policy_type for config in configs}),
                "config_hash": jobs_file.config_hash,
            }
            if_any = {"questions": [question.name for question in jobs_file.questions], "told": told}
            found.append(facts | {name: value for name, value in if_any.items() if value})
    if options.json:
        print_json({"files": found, "problems": problems})
        return 2 if problems else 0
    at_most = "" if options.limit is None else f", {loading.limit_in_words(options.limit)}"
    for facts in found:
        noun = "job" if len(facts["jobs"]) == 1 else "jobs"
        asked = f", asked: {', '.join(facts['questions'])}" if "questions" in facts else ""
        summary = (
            f"{facts['file']}: {len(facts['jobs'])} {noun}, {facts['episodes']} episodes, "
            f"environments {', '.join(facts['environments'])}, policies {', '.join(facts['policies'])}, "
            f"hash {facts['config_hash']}{asked}{at_most}"
        )
        print(plain_text(summary))
        for line, names in facts.get("told", {}).items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            print(plain_text(f"  job '{names[0]}'{more}: {line}"))
    refuse(problems)
    return 0
