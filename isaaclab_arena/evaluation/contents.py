"""What jobs evaluate, by content, and whether a resumed run still evaluates the same."""

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, refuse
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.interfaces.content import UNKNOWN, ContentSources, sources_in_options
from isaaclab_arena.storage.atomic import move_aside
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, changes, content_hash, differences_of_contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import SET_ASIDE_DIRECTORY, SETTLED_FILE
from isaaclab_arena.storage.ledger import RunPlan, contents_in_effect, read_attempts
from isaaclab_arena.storage.recovery import set_job_aside

_COMPARED_IN_EVERY_RUN = frozenset({"torch", "numpy", "scipy", "gymnasium", "mujoco", "warp", "mujoco_warp"})
"""Packages whose versions every attempt names already, and which may change between two."""

_HASHED_AS: dict[str, tuple[Any, str]] = {}
"""Modules of this process with their specs, which another import replaces, and the hashes of what was imported."""

_LOG = logging.getLogger(__name__)


def contents_of_jobs(jobs: Sequence[Job]) -> dict[str, Contents]:
    """Return the contents of each pending job, by its name. Files that several jobs share are read once."""
    reader = ContentReader()
    return {job.config.name: reader.read(job) for job in jobs if job.config.status is JobStatus.PENDING}


def refuse_changed(job: Job, begun: Contents, *, environment: bool, policy: bool) -> None:
    """Raise `ConfigError` with every file of a job that has changed since the run began."""
    name = job.config.name
    why = f"it changed while the run went on; put back what it was, or run the job anew: --resume --rerun {name}"
    now = ContentReader().read(job)
    # Only what was built for this job has read its files again; an earlier job's objects have the contents of `begun`.
    changed = [*(changes(begun.environment, now.environment) if environment else ())]
    changed += changes(begun.policy, now.policy) if policy else ()
    problems = [Problem(f"{how}; {why}", job=name, key=key) for key, how in changed]
    refuse(problems)


class ContentReader:
    """Reads the contents of jobs; each file is read once. `hash_file` returns the hash of a file's content."""

    def __init__(self, hash_file: Callable[[Path], str] = content_hash) -> None:
        self._hash_file = hash_file
        self._hashes: dict[str, str] = {}
        self._modules: dict[tuple[str, ...], Mapping[str, Path]] = {}
        self._of_policy: dict[str, tuple[Mapping[str, str], str | None]] = {}
        self._of_environment: dict[str, Mapping[str, str]] = {}

    def read(self, job: Job) -> Contents:
        """Return the contents of a job."""
        key = f"{job.policy_class.__module__}:{job.policy_class.__qualname__} {job.policy_key}"
        if key not in self._of_policy:
            policy_class, lent = job.policy_class, job.lent
            sources = policy_class.content_sources(job.policy_options) if lent is None else lent.content
            if (policy_class.traits.remote or "is_remote" in policy_class.offers) and not sources.unknown:
                # The network may run elsewhere, and no server is queried before the job is built.
                sources = replace(sources, unknown=("server",))
            modules = provenance.modules_of_class(job.policy_class)
            self._of_policy[key] = self._contents(sources, modules), sources.checkpoint
        policy, checkpoint = self._of_policy[key]
        return Contents(policy=policy, environment=self.environment(job), checkpoint=checkpoint)

    def environment(self, job: Job) -> Mapping[str, str]:
        """Return everything that determines the behavior of a job's environment, by name."""
        key = job.environment_key
        if key not in self._of_environment:
            options = sources_in_options(job.config.environment_args)
            known = job.builder.content_sources(job.environment_config) or options
            sources = replace(known, files={**options.files, **known.files})
            self._of_environment[key] = self._contents(sources, provenance.modules_of_object(job.builder.own))
        found = dict(self._of_environment[key])
        if job.saved_conditions is not None:
            found[SAVED_CONDITIONS] = hashlib.sha256(json_line(job.saved_conditions).encode()).hexdigest()
        return found

    def _contents(self, sources: ContentSources, modules: Sequence[str]) -> Mapping[str, str]:
        all_modules = tuple(dict.fromkeys([*modules, *sources.modules]))
        installed = [name.partition(".")[0] for name in all_modules if provenance.is_installed(name)]
        packages = dict.fromkeys([*installed, *sources.packages])
        found = {name: self._hash(path) for name, path in sources.files.items()}
        own = tuple(name for name in all_modules if not provenance.is_installed(name))
        if own not in self._modules:
            self._modules[own] = provenance.source_files(own)
        for name, path in self._modules[own].items():
            found[f"module {name}"] = _imported_as(name, path, self._hash(path))
        for package in packages:
            content = None if package in _COMPARED_IN_EVERY_RUN else provenance.package_content(package)
            if content is not None:
                found[f"package {package}"] = content
        return {**found, **sources.stated, **dict.fromkeys(sources.unknown, UNKNOWN)}

    def _hash(self, path: Path) -> str:
        where = str(path.absolute())
        if where not in self._hashes:
            self._hashes[where] = self._hash_file(path)
        return self._hashes[where]


def _imported_as(name: str, path: Path, file_hash: str) -> str:
    """Return the hash of a module's imported code: a changed file is not imported again."""
    module = sys.modules.get(name)
    if module is None:
        return file_hash
    # A new spec means that the module was imported again, with the present file.
    spec, known = _HASHED_AS.get(name, (None, None))
    if known is None or spec is not module.__spec__:
        _HASHED_AS[name] = module.__spec__, file_hash
        return file_hash
    if known != file_hash:
        _LOG.warning(
            "%s has changed since it was imported, and what was imported runs, under its own hash; "
            "importlib.reload('%s'), or another start of Python, takes the change up",
            path,
            name,
        )
    return known


# Continue a run only if it still evaluates the same, except for the jobs that run again from the start.

OPTION = "--rerun"

_MAX_SHOWN = 20


def check_names(rerun: Sequence[str], jobs: Sequence[str]) -> None:
    """Raise `ConfigError` for every name in ``--rerun`` that is no job."""
    unknown = [name for name in dict.fromkeys(rerun) if name not in jobs]
    refuse([Problem(f"there is no job '{name}'{did_you_mean(name, jobs)}", key=OPTION) for name in unknown])


def jobs_to_run_anew(
    output_directory: Path,
    begun: RunPlan,
    now: RunPlan,
    rerun: Sequence[str],
    *,
    has_recorded: Callable[[str], bool] = lambda _: True,
) -> tuple[str, ...]:
    """Return the jobs whose episodes no longer count, because they evaluated something else."""
    # `begun` is the plan of the run's beginning, `now` the requested one. A job without recordings continues with its
    # present contents. A job that ``--rerun`` names keeps its episodes if its contents are the same, so the same
    # command can be repeated after an interruption. A job with unknown contents runs again.
    attempts, _ = read_attempts(output_directory, begun.run_id)
    before = contents_in_effect([job for job in begun.jobs if job.is_to_run], attempts)
    wanted = {job.name: job for job in now.jobs if job.name in before}
    if unsaid := sorted(name for name in wanted if before[name] is None and name not in rerun):
        _LOG.warning(
            "%s was begun by a program that did not write down what it evaluates: whether %s still has the same "
            "checkpoint and the same code cannot be checked",
            output_directory,
            _in_words(unsaid),
        )
    changed: dict[str, list[Problem]] = {}
    for name, job in wanted.items():
        known = before[name]
        found = [] if known is None or job.contents is None else differences_of_contents(known, job.contents)
        if problems := [Problem(how, job=name, key=what) for what, how in found]:
            changed[name] = problems

    # Jobs that ``--rerun`` does not name must be the same.
    if refused := [name for name in changed if name not in rerun and has_recorded(name)]:
        named = " ".join(f"{OPTION} {name}" for name in refused[:_MAX_SHOWN])
        message = (
            f"evaluates something else than when its episodes ran ({_in_words(refused)}); start a new run in another "
            f"directory, or have these jobs' episodes run anew: --resume {named}"
        )
        problems = [each for name in refused for each in changed[name]]
        shown = [Problem(message, file=str(output_directory)), *problems[:_MAX_SHOWN]]
        if len(problems) > _MAX_SHOWN:
            shown.append(Problem(f"and {len(problems) - _MAX_SHOWN} more differences"))
        raise ConfigError(shown)

    anew = []
    for name in dict.fromkeys(rerun):
        contents = before.get(name)
        if name in wanted and (contents is None or not contents.is_known or name in changed) and has_recorded(name):
            anew.append(name)
        else:
            _LOG.info("%s: job '%s' evaluates what it did before; its episodes stand", OPTION, name)
    return tuple(anew)


def set_aside_what_does_not_count(output_directory: Path, anew: Sequence[str], *, attempt: int) -> None:
    """Move the outputs of the jobs to run again out of the way. May be repeated after an interruption."""
    # Until attempt number `attempt` is written, the jobs still count with their old episodes.
    for name in anew:
        directory = output_directory / name
        why = f"{OPTION}: its episodes were made with something else"
        for line in set_job_aside(directory, name, attempt=attempt - 1, why=why):
            _LOG.warning("%s", line)
        forget_settled(output_directory, name, attempt=attempt)


def forget_settled(output_directory: Path, job: str, *, attempt: int) -> None:
    """Move aside the batch size of a job's policy, of which no episode counts: another network may need another one."""
    directory = output_directory / job
    if (directory / SETTLED_FILE).exists():
        move_aside(directory / SETTLED_FILE, directory / SET_ASIDE_DIRECTORY / f"attempt_{attempt - 1}")


def _in_words(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_SHOWN])
    more = len(names) - _MAX_SHOWN
    return f"job{'s' if len(names) > 1 else ''} {listed}{f' and {more} more' if more > 0 else ''}"
