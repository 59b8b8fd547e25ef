"""A checked job, its contents by files and packages, its episodes, and the conditions from which they start."""

import ast
import hashlib
import json
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import UNKNOWN, ContentSources, problems_of, read_options, sources_in_options
from isaaclab_arena.config.schema import COMMON_ENVIRONMENT_KEYS, Delays, JobConfig, JobStatus
from isaaclab_arena.environments.variations.senses import build_varied
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, placed, refuse
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Variation, spelled
from isaaclab_arena.interfaces.episode import MAX_SEED, Conditions, Episode
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import NetworkElsewhere
from isaaclab_arena.policy.catalog import LentPolicy
from isaaclab_arena.storage.atomic import json_line, json_text, write_text
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, content_hash, node, provenance_of, versions
from isaaclab_arena.storage.ledger import read_run_plan

_LOG = logging.getLogger(__name__)

OPEN_BACKEND = "auto"
"""Value of the option ``backend`` that leaves the simulator of an environment open."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One validated job, ready to run."""

    config: JobConfig  # from the jobs file
    builder: EnvironmentBuilder
    environment_config: Any  # instance of the builder's ``config_class``
    policy_class: type[PolicyBase]  # of a lent policy the base class, which says nothing
    # For ``policy_class.from_dict``: the job's options, with ``num_envs`` and the command line's if the policy has
    # such.
    policy_options: Mapping[str, Any]
    # Options for this process alone, because of its device; no part of the job.
    policy_placement: Mapping[str, Any] = field(default_factory=dict)
    variations: tuple[Variation, ...] = ()  # from episode to episode
    saved_conditions: tuple[Conditions, ...] | None = None  # of each episode, by index; None if drawn
    # Of the policy's answers. None without a latency, and while the control step or the measurement is missing.
    delays: Delays | None = None
    latencies_ms: tuple[float, ...] | None = None  # [ms], None if given in steps or measured
    described: Description | None = None  # by the policy's files, None without such files
    connections: Connections | None = None  # the policy's inputs and outputs, None if unknown before the build
    doubts: tuple[str, ...] = ()  # warnings about the policy's files, one sentence each
    lent: LentPolicy | None = None  # in place of a policy that is built

    @property
    def policy_traits(self) -> PolicyTraits:
        """The promises of the job's policy, as far as they are known before the build."""
        return self.policy_class.traits if self.lent is None else self.lent.policy.traits

    @property
    def num_played(self) -> int | None:
        """The number of episodes that the policy's files determine, None if they do not."""
        config, described = self.config, self.described
        if described is None or described.episodes is None or config.num_steps is not None:
            return None
        there = len(described.episodes)
        return config.num_episodes or min(there, config.max_episodes or there)

    @cached_property
    def environment_key(self) -> str:
        """Key that is equal for jobs that can share an environment object."""
        config = self.config
        return json.dumps(
            [
                config.environment,
                config.environment_args,
                config.num_envs,
                config.enable_cameras,
                spelled(self.variations),
                str(self.asked_backend),
            ],
            sort_keys=True,
        )

    @property
    def policy_key(self) -> str:
        """Key that is equal for jobs that can share a policy object."""
        free = {"num_envs"} if self.policy_traits.serves_any_num_envs else set()
        decisive = {name: value for name, value in self.policy_options.items() if name not in free}
        server = self.config.policy_server
        return json.dumps([self.config.policy_type, decisive, server and asdict(server)], sort_keys=True)

    @property
    def network_key(self) -> str:
        """Key that is equal for jobs whose policies can share a served network, for any num_envs."""
        decisive = {name: value for name, value in self.policy_options.items() if name != "num_envs"}
        return json.dumps([self.config.policy_type, decisive], sort_keys=True)

    @property
    def asked_backend(self) -> str | None:
        """The job's backend, or ``auto``; None if the environment has no choice of backends."""
        return getattr(self.environment_config, "backend", None) if self.builder.has_backends else None

    def with_settled(self, backend: str | None, delays: Delays | None = None) -> Self:
        """Return the job with a settled backend and a measured latency; None leaves each of them unchanged."""
        job, latency = self, self.config.latency
        if latency is not None and latency.measured and delays is not None:
            job = replace(self, delays=delays)
        # A backend that the job names itself stays.
        if backend is None or self.asked_backend != OPEN_BACKEND:
            return job
        return replace(job, environment_config=replace(job.environment_config, backend=backend))

    def with_num_envs(self, num_envs: int, *, policy_num_envs: int) -> Self:
        """Return the job for a group of `num_envs` of its env slots, whose policy is called for `policy_num_envs`."""
        options = dict(self.policy_options)
        if "num_envs" in options:
            options["num_envs"] = policy_num_envs
        return replace(self, config=replace(self.config, num_envs=num_envs), policy_options=options)

    def build_environment(self, *, device: torch.device, num_threads: int) -> Environment:
        """Build the environment, with observations and actions on `device` and `num_threads` physics threads."""
        return build_varied(
            self.builder,
            self.environment_config,
            variations=self.variations,
            num_envs=self.config.num_envs,
            device=device,
            num_threads=num_threads,
        )

    def build_policy(self, network: NetworkElsewhere | None = None) -> PolicyBase:
        """Build the policy, on a network elsewhere if any. `ConfigError` if it rejects its options or the network."""
        if self.lent is not None:
            return self.lent.policy
        policy_class: Any = self.policy_class
        options = {**self.policy_options, **self.policy_placement}
        return policy_class.from_dict(options) if network is None else policy_class.asking(options, network)

    def tell_connections(self, policy: PolicyBase, environment: Environment) -> None:
        """Log the inputs and outputs of a policy that has accepted the environment, and the doubts on its files."""
        connections = policy.connections(environment) if "connections" in policy.offers else None
        if connections is not None:
            _LOG.info("job '%s': %s", self.config.name, connections)
        doubts = [] if connections is None else connections.doubts(environment)
        for doubt in dict.fromkeys((*self.doubts, *doubts)):
            _LOG.warning("job '%s': %s", self.config.name, doubt)


# Find the source files that determine a class: its module, those of its bases, and their local imports.
#
# Imports are read from the source text, also those inside functions. Nothing is imported to find them, so the answer
# does not depend on the modules that a process has loaded.

_OWN = frozenset({"isaaclab_arena", "isaaclab_arena_gr00t", "arena_wire"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
# Python 3.11 counts the depth of all syntax trees in one place, so concurrent parsing fails now and then.
_PARSER = threading.Lock()


def modules_of(*parts: object) -> list[str]:
    """Return the modules of classes, of their bases, and of functions, without this package's and Python's own."""
    names: dict[str, None] = {}
    for part in parts:
        defined = part.__mro__ if isinstance(part, type) else [getattr(part, "func", part)] if callable(part) else []
        for name in (getattr(each, "__module__", None) for each in defined):
            if isinstance(name, str) and name.partition(".")[0] not in _OWN and _file(name) is not None:
                names[name] = None
    return list(names)


def modules_of_object(found: object) -> list[str]:
    """Return the modules of an object's class, and of the classes and functions in its attributes."""
    # The object may be a class that serves as a builder, whose own attributes decide too.
    return modules_of(type(found), *(vars(found).values() if hasattr(found, "__dict__") else ()))


def source_files(modules: Iterable[str]) -> dict[str, Path]:
    """Return the source files of modules and of their local imports, recursively, by dotted name."""
    found: dict[str, Path] = {}
    waiting = [(name, file) for name in modules if (file := _file(name)) is not None]
    while waiting:
        name, file = waiting.pop()
        if name in found or name.partition(".")[0] in _OWN:
            continue
        found[name] = file
        try:
            with _PARSER:
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError, OSError):
            # A file that cannot be parsed has no imports, but its content still counts.
            continue

        # Every dotted name that the file may import, and its parent packages, whose code runs first.
        imported: list[str] = []
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    imported += accumulate(alias.name.split("."), "{}.{}".format)
            elif isinstance(statement, ast.ImportFrom):
                base = statement.module or ""
                # A relative name counts from the package of the file, or from one above it.
                if statement.level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - statement.level + 1], *([base] if base else [])])
                imported += accumulate(filter(None, base.split(".")), "{}.{}".format)
                imported += (f"{base}.{alias.name}".lstrip(".") for alias in statement.names if alias.name != "*")

        # Dotted names count from the directory above the module's top package.
        depth = name.count(".") + (file.name == "__init__.py")
        root = file.parents[min(depth, len(file.parents) - 1)]
        for each in imported:
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


def provenance_on(device: torch.device) -> dict[str, str]:
    """Return the provenance of this process's results on a simulation device."""
    return provenance_of(
        versions(),
        node(),
        # Equal GPUs are interchangeable: the name of a GPU counts, and its index does not.
        device="cpu" if device.type == "cpu" else f"{device.type} ({torch.cuda.get_device_name(device)})",
    )


# What a job evaluates, by content.

_COMPARED_IN_EVERY_RUN = frozenset({"torch", "numpy", "scipy", "gymnasium", "mujoco", "warp", "mujoco_warp"})
"""Packages whose versions every attempt names already, and which may change between two."""

_HASHED_AS: dict[str, tuple[Any, str]] = {}
"""Modules of this process with their specs, which another import replaces, and the hashes of their imported text."""


def contents_of_jobs(jobs: Sequence[Job]) -> dict[str, Contents]:
    """Return the contents of each pending job, by its name. Files that several jobs share are read once."""
    reader = ContentReader()
    return {job.config.name: reader.read(job) for job in jobs if job.config.status is JobStatus.PENDING}


class ContentReader:
    """Reads the contents of jobs; each file is read once."""

    def __init__(self, hash_file: Callable[[Path], str] | None = None) -> None:
        # Both functions remember what they have returned.
        self._hash_file, self._source_files = hash_file or cache(content_hash), cache(source_files)
        self._of_policy: dict[str, Contents] = {}
        self._of_environment: dict[str, Mapping[str, str]] = {}

    def read(self, job: Job) -> Contents:
        """Return the contents of a job."""
        policy_class = job.policy_class
        key = f"{policy_class.__module__}:{policy_class.__qualname__} {job.policy_key}"
        if key not in self._of_policy:
            sources = policy_class.content_sources(job.policy_options) if job.lent is None else job.lent.content
            if (policy_class.traits.remote or "is_remote" in policy_class.offers) and not sources.unknown:
                # The network may run elsewhere, and no server is queried before the job is built.
                sources = replace(sources, unknown=("server",))
            policy = self._contents(sources, modules_of(policy_class))
            self._of_policy[key] = Contents(policy=policy, checkpoint=sources.checkpoint)
        return replace(self._of_policy[key], environment=self.environment(job))

    def environment(self, job: Job) -> Mapping[str, str]:
        """Return everything that determines the behavior of a job's environment, by name."""
        key = job.environment_key
        if key not in self._of_environment:
            options = sources_in_options(job.config.environment_args)
            known = job.builder.content_sources(job.environment_config) or options
            sources = replace(known, files={**options.files, **known.files})
            self._of_environment[key] = self._contents(sources, modules_of_object(job.builder.own))
        if job.saved_conditions is None:
            return self._of_environment[key]
        saved = hashlib.sha256(json_line(job.saved_conditions).encode()).hexdigest()
        return {**self._of_environment[key], SAVED_CONDITIONS: saved}

    def _contents(self, sources: ContentSources, modules: Sequence[str]) -> Mapping[str, str]:
        all_modules = dict.fromkeys([*modules, *sources.modules])
        # The user's own files count by their content, an installed package by its version and its record.
        files = {name: file for name in all_modules if (file := _file(name)) is not None}
        installed = [name for name, file in files.items() if not _INSTALLED.isdisjoint(file.parts)]
        found = {name: self._hash_file(path.absolute()) for name, path in sources.files.items()}
        for name, path in self._source_files(tuple(each for each in all_modules if each not in installed)).items():
            # A changed file is not imported again, so the imported text runs, under its own hash. A new spec means that
            # the module was imported again, with the present file.
            content, module = self._hash_file(path.absolute()), sys.modules.get(name)
            if module is not None:
                spec, known = _HASHED_AS.get(name, (None, None))
                if known is None or spec is not module.__spec__:
                    _HASHED_AS[name] = module.__spec__, content
                elif known != content:
                    _LOG.warning(
                        "%s has changed since its import, so the imported code runs, under its own hash; "
                        "importlib.reload('%s') or a new Python process loads the change",
                        path,
                        name,
                    )
                    content = known
            found[f"module {name}"] = content
        for package in dict.fromkeys([*(name.partition(".")[0] for name in installed), *sources.packages]):
            content = None if package in _COMPARED_IN_EVERY_RUN else package_content(package)
            if content is not None:
                found[f"package {package}"] = content
        return {**found, **sources.stated, **dict.fromkeys(sources.unknown, UNKNOWN)}


# Plan a job's episodes and their length, from the job or else from its policy.


def with_length(config: JobConfig, policy: PolicyBase) -> JobConfig:
    """Return a job with its own length or the policy's. `ConfigError` without one, or if an episode is not playable."""
    num_steps, num_episodes = config.num_steps, config.num_episodes
    # The job's own length comes first, then the policy's episodes, then its steps.
    if num_steps is None and num_episodes is None:
        num_episodes = policy.num_episodes()
        if num_episodes is not None and config.max_episodes is not None:
            num_episodes = min(num_episodes, config.max_episodes)
    if num_steps is None and num_episodes is None and policy.has_length():
        num_steps = policy.length()
    if num_steps is None and num_episodes is None:
        raise ConfigError(
            f"job '{config.name}' gives neither num_episodes nor num_steps, "
            f"and policy '{config.policy_type}' has no length of its own"
        )
    # Check every episode now, so that the job fails before it plays any.
    beyond = next((index for index in range(num_episodes or 0) if not policy.can_play(index)), None)
    if beyond is not None:
        raise ConfigError(
            f"job '{config.name}' asks for {num_episodes} episodes, "
            f"but policy '{config.policy_type}' has nothing to play in episode {beyond}"
        )
    return replace(config, num_episodes=num_episodes, num_steps=num_steps)


def episode_of(job: Job, episode_index: int) -> Episode:
    """Return an episode of a job by its index."""
    config, saved = job.config, job.saved_conditions
    return Episode(
        job=config.name,
        episode_index=episode_index,
        seed=config.seed,
        conditions_seed=config.placement_seed,
        saved_conditions=None if saved is None else saved[episode_index],
    )


# Saved conditions: the starts of a job's episodes in a file, for any policy to meet the same ones.

SCHEMA_VERSION = 1

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_Value = float | int | str | list[float]


@dataclass(frozen=True, kw_only=True)
class ConditionSet:
    """The conditions from which the episodes of one job started."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    job: str  # name of the job, for people and for ``FILE#job``
    environment: str  # registered name
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    episodes: Annotated[list[dict[str, _Value]], Field(min_length=1)]  # conditions of each episode, by index
    environment_args: dict[str, Any] = field(default_factory=dict)
    variations: dict[str, Any] = field(default_factory=dict)  # enabled ones, in the job file's syntax


@dataclass(frozen=True, kw_only=True)
class ConditionFile:
    """The content of a file of saved conditions, one set per job."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    sets: Annotated[list[ConditionSet], Field(min_length=1)]
    schema_version: int = SCHEMA_VERSION


def save_conditions(path: Path, output_directory: Path, *, goes_on: bool = False) -> list[str]:
    """Write the conditions of a run's complete jobs, bit-exact. Return one line per job with missing episodes."""
    # An earlier start of the run may have written the file; without `goes_on` an existing file is an error.
    if goes_on:
        check_saved_earlier(path, output_directory)
    sets, left_out = _complete_sets(output_directory)
    if not sets:
        raise ConfigError("no job is complete, so there are no conditions to save", file=str(path))
    write_text(path, json_text(ConditionFile(sets=sets)), overwrite=goes_on)
    return [f"the conditions of job '{name}' are not saved: episodes of it are missing" for name in left_out]


def check_saved_earlier(path: Path, output_directory: Path) -> None:
    """Raise `ConfigError` if the file exists and holds a set that none of the run's complete jobs has."""
    if not path.exists():
        return
    sets, _ = _complete_sets(output_directory)
    other = next((each.job for each in load_conditions(str(path), Path.cwd()) if each not in sets), None)
    if other is not None:
        message = f"{path} exists already, and its conditions of job '{other}' are not in this run; name another file"
        raise ConfigError(message, key="--save_conditions")


def _complete_sets(output_directory: Path) -> tuple[list[ConditionSet], list[str]]:
    """Return the conditions of a run's complete jobs, and the names of jobs with missing episodes."""
    sets, incomplete = [], []
    for job in read_run_plan(output_directory).jobs:
        directory = output_directory / job.name
        lines = read_commits(directory, job.name, seed=job.config.seed).lines
        if not job.is_to_run:
            continue
        if not lines or len(lines) != (job.config.num_episodes or len(lines)):
            incomplete.append(job.name)
            continue
        first = lines[0]
        sets.append(
            ConditionSet(
                job=job.name,
                environment=job.config.environment,
                environment_args=dict(job.config.environment_args),
                seed=first.seed if first.conditions_seed is None else first.conditions_seed,
                variations=dict(job.variations),
                episodes=[dict(line.conditions) for line in lines],
            )
        )
    return sets, incomplete


def load_conditions(reference: str, directory: Path) -> list[ConditionSet]:
    """Return the sets of a file, or the one set of ``FILE#job``. `ConfigError` with every problem of the file."""
    name, _, job = reference.partition("#")
    path = directory / name
    # Check the version first, so that a newer layout is not reported as many wrong keys.
    document = read_document(path)
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != SCHEMA_VERSION:
        message = f"holds no saved conditions of schema version {SCHEMA_VERSION}, which this program reads"
        raise ConfigError(message, file=str(path))
    try:
        sets = TypeAdapter(ConditionFile).validate_json(json.dumps(document)).sets
    except ValidationError as invalid:
        raise ConfigError(placed(problems_of(invalid), file=str(path))) from invalid
    if not job:
        return sets
    named = [each for each in sets if each.job == job]
    if not named:
        raise ConfigError(f"holds no set '{job}'{did_you_mean(job, (each.job for each in sets))}", file=str(path))
    return named


def save_unplayed(reference: str, played: int, path: Path) -> bool:
    """Write the `played` conditions behind the first `played` ones of each set; False if no set has as many."""
    sets = [
        replace(each, episodes=each.episodes[played : 2 * played])
        for each in load_conditions(reference, Path())
        if len(each.episodes) >= 2 * played
    ]
    if sets:
        write_text(path, json_text(ConditionFile(sets=sets)), overwrite=True)
    return bool(sets)


def saved_set(job: JobConfig, builder: EnvironmentBuilder, wanted: Any, directory: Path) -> ConditionSet:
    """Return the saved conditions of a job whose environment has the options `wanted`."""
    environment, reference = job.environment, job.conditions or ""
    try:
        # A relative path of saved conditions starts from `directory`.
        fitting, differences = [], []
        for saved in load_conditions(reference, directory):
            if (how := _difference(saved, environment, builder, wanted)) is None:
                fitting.append(saved)
            else:
                differences.append(how)
        refuse([] if fitting else [Problem(f"was saved for another environment: {differences[0]}")])
        if len(fitting) > 1:
            seed = job.seed if job.placement_seed is None else job.placement_seed
            fitting = [each for each in fitting if each.seed == seed] or fitting
        if len(fitting) > 1:
            names = ", ".join(each.job for each in fitting)
            refuse([Problem(f"holds {len(fitting)} sets that fit ({names}); name one, as in FILE#{fitting[0].job}")])
        chosen = fitting[0]
    except ConfigError as error:
        # The job's key leads to the file, so the message names the place in it.
        places = [(each.file or reference, each.key, each.message) for each in error.problems]
        messages = [": ".join(part for part in place if part) for place in places]
        raise ConfigError([Problem(message, key="conditions") for message in messages]) from error

    # Refuse keys of the job that contradict the set.
    problems = []
    if job.variations:
        problems.append(Problem("are part of the saved conditions; leave them out", key="variations"))
    if job.placement_seed is not None and job.placement_seed != chosen.seed:
        message = f"is {job.placement_seed}, but the saved conditions have {chosen.seed}; leave it out"
        problems.append(Problem(message, key="arena_env_args.placement_seed"))
    for key, number in (("num_episodes", job.num_episodes), ("num_rebuilds", job.num_rebuilds)):
        if number is not None and number > len(chosen.episodes):
            problems.append(Problem(f"is {number}, but conditions are saved for {len(chosen.episodes)}", key=key))
    refuse(problems)
    return chosen


def _difference(saved: ConditionSet, environment: str, builder: EnvironmentBuilder, wanted: Any) -> str | None:
    """Return the first difference between a set's environment and a job's that affects conditions, None without one."""
    if saved.environment != environment:
        return f"environment was '{saved.environment}', the job has '{environment}'"
    try:
        changed = changed_options(builder, saved.environment_args, wanted, owner=f"environment '{environment}'")
    except ConfigError as error:
        return error.problems[0].message
    of_conditions = (name for name in changed if not name.startswith(("camera_", "enable_cameras", "action_mode")))
    return next((f"{name} was {changed[name][0]!r}, the job has {changed[name][1]!r}" for name in of_conditions), None)


def changed_options(
    builder: EnvironmentBuilder, before: Mapping[str, Any], now: Any, *, owner: str
) -> dict[str, tuple[Any, Any]]:
    """Map each option with another value before to both values; `ConfigError` if the environment has none of it now."""
    read = read_options(builder.config_class, before, owner=owner, other_names=COMMON_ENVIRONMENT_KEYS)
    pairs = {each.name: (getattr(read, each.name), getattr(now, each.name)) for each in fields(now) if each.init}
    return {name: (was, is_now) for name, (was, is_now) in pairs.items() if was != is_now}
