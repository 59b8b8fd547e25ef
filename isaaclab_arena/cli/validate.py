"""``isaaclab-arena validate``: check job files without running anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from isaaclab_arena.cli.main import print_json
from isaaclab_arena.config import arena, loading, schema
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError, Problem, problems_into, refuse
from isaaclab_arena.evaluation.validation import arms_of, resolve_jobs
from isaaclab_arena.logs import plain_text
from isaaclab_arena.tracking.trackers import check_trackers


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


def main(argv: Sequence[str]) -> int:
    """Check the files named in ``argv``; ConfigError lists every problem of every file."""
    options = read_words(ValidateOptions, argv, program="isaaclab-arena validate")
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
            arms = partial(arms_of, may_import=not options.no_import)
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
