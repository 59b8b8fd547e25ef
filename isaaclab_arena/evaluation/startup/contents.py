"""Knowing by content what jobs evaluate: hashes of files and classes, versions of packages."""

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.provenance.provenance import package_content
from isaaclab_arena.evaluation.provenance.source_files import (
    is_installed,
    modules_of_class,
    modules_of_object,
    source_files,
)
from isaaclab_arena.interfaces.content import UNKNOWN, ContentBuilder, ContentSources, sources_in_options
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.content_hash import content_hash
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, changes
from isaaclab_arena.storage.json_values import json_line

_COMPARED_IN_EVERY_RUN = frozenset({"torch", "numpy", "scipy", "gymnasium", "mujoco", "warp", "mujoco_warp"})
"""Packages whose versions every attempt names already, and which may change between two."""

_HASHED_AS: dict[str, tuple[Any, str]] = {}
"""Modules of this process with their specs, which another import replaces, and the hashes of what was imported."""

_LOG = logging.getLogger(__name__)


def contents_of_jobs(jobs: Sequence[Job]) -> dict[str, Contents]:
    """Return what each job that is to run evaluates, by its name; files that several jobs share are read once.

    Raises:
        StorageError: If a file cannot be read.
    """
    reader = ContentReader()
    return {job.config.name: reader.read(job) for job in jobs if job.config.status is JobStatus.PENDING}


def refuse_changed(job: Job, begun: Contents, *, environment: bool, policy: bool) -> None:
    """Refuse a job that has read other files than those that the run is known by.

    Args:
        job: The job.
        begun: What it evaluated as the run began.
        environment: Whether its environment has been built since, and is not that of an earlier job.
        policy: The same for its policy.

    Raises:
        ConfigError: With every file that has changed since.
    """
    name = job.config.name
    why = f"it changed while the run went on; put back what it was, or run the job anew: --resume --rerun {name}"
    now = ContentReader().read(job)
    changed = [
        *(changes(begun.environment, now.environment) if environment else ()),
        *(changes(begun.policy, now.policy) if policy else ()),
    ]
    problems = [Problem(f"{how}; {why}", job=name, key=key) for key, how in changed]
    if problems:
        raise ConfigError(problems)


class ContentReader:
    """Reads what jobs evaluate; each file is read once.

    Args:
        hash_file: Returns the hash of a file's content.
    """

    def __init__(self, hash_file: Callable[[Path], str] = content_hash) -> None:
        self._hash_file = hash_file
        self._hashes: dict[str, str] = {}
        self._modules: dict[tuple[str, ...], Mapping[str, Path]] = {}
        self._of_policy: dict[str, tuple[Mapping[str, str], str | None]] = {}
        self._of_environment: dict[str, Mapping[str, str]] = {}

    def read(self, job: Job) -> Contents:
        """Return what a job evaluates."""
        key = f"{job.policy_class.__module__}:{job.policy_class.__qualname__} {job.policy_key}"
        if key not in self._of_policy:
            sources = job.policy_class.content_sources(job.policy_options)
            if job.policy_class.is_remote is not PolicyBase.is_remote and not sources.unknown:
                # Its network may run elsewhere, and nobody is asked before the job is built.
                sources = replace(sources, unknown=("server",))
            modules = modules_of_class(job.policy_class)
            self._of_policy[key] = self._contents(sources, modules), sources.checkpoint
        policy, checkpoint = self._of_policy[key]
        return Contents(policy=policy, environment=self.environment(job), checkpoint=checkpoint)

    def environment(self, job: Job) -> Mapping[str, str]:
        """Return what decides what a job's environment does."""
        key = job.environment_key
        if key not in self._of_environment:
            builder: Any = job.builder
            options = sources_in_options(job.config.environment_args)
            known = builder.content_sources(job.environment_config) if isinstance(builder, ContentBuilder) else options
            sources = replace(known, files={**options.files, **known.files})
            self._of_environment[key] = self._contents(sources, modules_of_object(builder))
        found = dict(self._of_environment[key])
        if job.saved_conditions is not None:
            found[SAVED_CONDITIONS] = hashlib.sha256(json_line(job.saved_conditions).encode()).hexdigest()
        return found

    def _contents(self, sources: ContentSources, modules: Sequence[str]) -> Mapping[str, str]:
        all_modules = tuple(dict.fromkeys([*modules, *sources.modules]))
        installed = [name.partition(".")[0] for name in all_modules if is_installed(name)]
        packages = dict.fromkeys([*installed, *sources.packages])
        found = {name: self._hash(path) for name, path in sources.files.items()}
        for name, path in self._sources(tuple(name for name in all_modules if not is_installed(name))).items():
            found[f"module {name}"] = _imported_as(name, path, self._hash(path))
        for package in packages:
            content = None if package in _COMPARED_IN_EVERY_RUN else package_content(package)
            if content is not None:
                found[f"package {package}"] = content
        return {**found, **sources.stated, **dict.fromkeys(sources.unknown, UNKNOWN)}

    def _sources(self, modules: tuple[str, ...]) -> Mapping[str, Path]:
        if modules not in self._modules:
            self._modules[modules] = source_files(modules)
        return self._modules[modules]

    def _hash(self, path: Path) -> str:
        where = str(path.absolute())
        if where not in self._hashes:
            self._hashes[where] = self._hash_file(path)
        return self._hashes[where]


def _imported_as(name: str, path: Path, file_hash: str) -> str:
    """Return the hash of the code of a module that runs: Python does not import it again because its file changed.

    Args:
        name: Its dotted name.
        path: Its file.
        file_hash: The hash of that now.
    """
    module = sys.modules.get(name)
    if module is None:
        return file_hash
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
