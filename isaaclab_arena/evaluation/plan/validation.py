"""Check every job against the environments and policies that exist, before anything is simulated."""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from isaaclab_arena.config.arena import in_own_options
from isaaclab_arena.config.job_fields import COMMON_ENVIRONMENT_KEYS
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.config.schema import UNREADABLE, JobConfig, JobsFile
from isaaclab_arena.distributed.devices import check_policy_device, cpu_holds_for_policy, resolve_policy_device
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem
from isaaclab_arena.evaluation.batching.fixed_batch import batch_of, check_policy_batch
from isaaclab_arena.evaluation.latency.job_latency import JobLatency, job_latency
from isaaclab_arena.evaluation.plan.described_files import held_against_files
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.job_conditions import JobConditions, job_conditions
from isaaclab_arena.evaluation.plan.suite_problems import told_once
from isaaclab_arena.evaluation.policy_server.sharing import DEVICE_OPTION, refuse_unshareable
from isaaclab_arena.evaluation.process.left_alone import Imports
from isaaclab_arena.interfaces.connections import Connections, DescribesFiles, Description
from isaaclab_arena.interfaces.content import LoadsCode
from isaaclab_arena.interfaces.environment_builder import CountedBuilder, EnvironmentBuilder, SampleBuilder
from isaaclab_arena.interfaces.policy import PolicyBase, declared_options, overrides
from isaaclab_arena.interfaces.policy_options.declared import DeclaredOptions
from isaaclab_arena.interfaces.variation import VariableEnvironmentBuilder, Variation
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.registry import Registry

_Result = TypeVar("_Result")
_Environment: TypeAlias = tuple[EnvironmentBuilder, Any]
_Policy: TypeAlias = tuple[type[PolicyBase], dict[str, Any]]
_MISSING = "is missing"
_LOG = logging.getLogger(__name__)
_ON_NO_GPU = {DEVICE_OPTION: "cpu", "policy_device_id": None}
_NAMES_A_DEVICE = ("policy_device", "policy_device_id", "device")


def resolve_jobs(
    jobs: JobsFile | Sequence[JobConfig],
    *,
    file: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environments: Registry = ENVIRONMENTS,
    may_import: bool = True,
    policy_batch: int | None = None,
    device: str | None = None,
    policy_class: type[PolicyBase] | None = None,
) -> tuple[Job, ...]:
    """Find the environment and the policy of every job and check all their options.

    Args:
        jobs: What the job file says; or the file as a whole, read ``partly``, whose jobs are checked as far as they
            could be read.
        file: The job file, for messages, where it is not given as a whole.
        overrides: Options that the command line gives to every policy that has them, such as ``policy_device``;
            those that are None are left out.
        environments: Where the names of environments are looked up.
        may_import: Whether a job may name code, that is the class path of a policy, the module of an environment or
            an interpreter; otherwise registered names and those of installed packages are all there is.
        policy_batch: Env slots that policies are always asked on, whatever a job's ``num_envs``; None for just those.
        device: ``--device`` as the user gave it, None for the rank's own choice.
        policy_class: The class of every job's policy, None for those that the jobs name.

    Raises:
        ConfigError: With every problem of every job, after those of the file.
    """
    known: tuple[Problem, ...] = ()
    if isinstance(jobs, JobsFile):
        jobs, file, known = jobs.jobs, jobs.path, jobs.problems
    resolver = _Resolver(
        environments,
        {key: value for key, value in (overrides or {}).items() if value is not None},
        Path(file or "").parent,
        may_import=may_import,
        policy_batch=policy_batch,
        policies_on_cpu=cpu_holds_for_policy(device),
        policy_class=policy_class,
    )
    return resolver.resolve_all(jobs, file, known)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """What an environment and a policy together say; see `Job`."""

    connections: Connections | None
    doubts: tuple[str, ...]
    described: Description | None
    latency: JobLatency | None


@dataclass(frozen=True, kw_only=True)
class _FoundEnvironment:
    """What builds a job's environment.

    Attributes:
        builder: What builds it.
        config: Its configuration, without the options that are wrong; None where that is not to be had.
        own_args: ``environment_args`` in its own options.
        problems: What is wrong with them.
    """

    builder: EnvironmentBuilder
    config: Any
    own_args: dict[str, Any]
    problems: tuple[Problem, ...] = ()

    @property
    def pair(self) -> _Environment:
        return self.builder, self.config


@dataclass(frozen=True, kw_only=True)
class _FoundPolicy:
    """The class of a job's policy.

    Attributes:
        policy_class: The class.
        options: Its options.
        placement: What is added to them in this process alone.
        problems: What is wrong with them.
    """

    policy_class: type[PolicyBase]
    options: dict[str, Any]
    placement: dict[str, Any]
    problems: tuple[Problem, ...] = ()


class _Resolver:
    """Resolves jobs one by one, and what many jobs share only once."""

    def __init__(
        self,
        environments: Registry,
        overrides: Mapping[str, Any],
        directory: Path,
        *,
        may_import: bool,
        policy_batch: int | None,
        policies_on_cpu: bool,
        policy_class: type[PolicyBase] | None,
    ) -> None:
        self._policy_class = policy_class
        self._environments = environments
        self._may_import = may_import
        self._policy_batch = policy_batch
        self._policies_on_cpu = policies_on_cpu
        self._overrides = overrides
        self._directory = directory
        self._known: dict[str, Any] = {}
        self._imports = Imports()
        # Which devices that jobs name LOCAL_RANK overrules, each with the first job that names it.
        self._overruled: dict[str, str] = {}

    def resolve_all(self, jobs: Sequence[JobConfig], file: str | None, known: Sequence[Problem]) -> tuple[Job, ...]:
        resolved: list[Job] = []
        problems: list[tuple[JobConfig, Problem]] = []
        broken = {problem.job for problem in known}
        for job in jobs:
            found, wrong = self._resolve(job)
            # What is missing in a job of which a part could not be read may be in that part.
            is_whole = broken.isdisjoint({None, job.name})
            problems += [
                (job, dataclasses.replace(problem, file=file, job=job.name))
                for problem in wrong
                if is_whole or not problem.message.startswith(_MISSING)
            ]
            if found is not None:
                resolved.append(found)
        if problems or known:
            raise ConfigError([*known, *told_once(problems)])
        if self._overruled:
            _LOG.info(
                "under a launcher each rank's policy runs on the rank's own GPU: no effect has %s",
                ", ".join(f"{named} of job '{job}'" for named, job in self._overruled.items()),
            )
        return tuple(resolved)

    def _resolve(self, job: JobConfig) -> tuple[Job | None, list[Problem]]:
        problems: list[Problem] = []
        wanted = [job.environment, job.environment_args, job.enable_cameras]
        # What the file could not say is told already, and nothing is known of it.
        unread = ConfigError(())
        environment = (
            self._once("environment", wanted, self._environment, job) if job.environment != UNREADABLE else unread
        )
        asked = [job.policy_type, job.policy_config_dict, job.num_envs, str(job.policy_server)]
        policy = self._once("policy", asked, self._policy, job) if job.policy_type != UNREADABLE else unread
        conditions = JobConditions(config=job)
        is_sound = not isinstance(environment, ConfigError) and not environment.problems
        if not isinstance(environment, ConfigError) and environment.config is not None:
            if environment.own_args != job.environment_args:
                job = dataclasses.replace(job, environment_args=environment.own_args)
            try:
                counts_itself = not isinstance(policy, ConfigError) and _counts_itself(policy.policy_class)
                # How many episodes an environment has may depend on what is wrong with its options.
                counted = _counted(job, environment, policy_counts=counts_itself) if is_sound else job
                conditions = self._conditions(counted, environment)
            except ConfigError as error:
                problems.extend(error.problems)
        for outcome in (environment, policy):
            problems.extend(outcome.problems)
        policy_class = None if isinstance(policy, ConfigError) else policy.policy_class
        if policy_class is not None and self._lacks_length(conditions, policy_class, is_sound=is_sound):
            message = f"{_MISSING}: '{job.policy_type}' has no length of its own, so give num_episodes or num_steps"
            problems.append(Problem(message, key="num_episodes"))
        if isinstance(environment, ConfigError) or isinstance(policy, ConfigError) or not is_sound or policy.problems:
            return None, problems
        fitting = (environment.pair, (policy.policy_class, {**policy.options, **policy.placement}))
        fit = self._once("fit", [str(job.latency), *wanted, *asked], lambda of: self._fit(of, *fitting), job)
        if isinstance(fit, ConfigError):
            problems.extend(fit.problems)
        if problems or isinstance(fit, ConfigError):
            return None, problems
        resolved = Job(
            config=conditions.config,
            builder=environment.builder,
            environment_config=environment.config,
            policy_class=policy.policy_class,
            policy_options=policy.options,
            policy_placement=policy.placement,
            variations=conditions.variations,
            saved_conditions=conditions.saved,
            latency=fit.latency,
            connections=fit.connections,
            doubts=fit.doubts,
            described=fit.described,
        )
        try:
            return held_against_files(resolved), []
        except ConfigError as error:
            return None, list(error.problems)

    def _fit(self, job: JobConfig, environment: _Environment, policy: _Policy) -> "_Fit":
        """Refuse what environment and policy say against each other, and return what they say of each other."""
        policy_class, options = policy
        connections, doubts = _checked_fit(environment, policy)
        described = None
        if issubclass(policy_class, DescribesFiles):
            config = declared_options(policy_class).read(options, owner="policy")
            described = _keyed("policy_config_dict", lambda: policy_class.description(config))
        latency = job_latency(job.latency, self._directory, environment, policy)
        return _Fit(connections=connections, doubts=doubts, described=described, latency=latency)

    def _once(
        self, what: str, key: Any, resolve: Callable[[JobConfig], _Result], job: JobConfig
    ) -> _Result | ConfigError:
        index = what + json.dumps(key, sort_keys=True)
        if index not in self._known:
            try:
                self._known[index] = resolve(job)
            except ConfigError as error:
                self._known[index] = error
            named = {"environment": job.environment, "policy": job.policy_type}
            if what in named:
                self._imports.settle(f"{what} '{named[what]}'")
        return self._known[index]

    def _lacks_length(self, conditions: JobConditions, policy_class: type[PolicyBase], *, is_sound: bool) -> bool:
        """Return whether nothing says when a job ends, nor an environment that would once its options are right."""
        if not _has_no_length(conditions, policy_class) or is_sound:
            return _has_no_length(conditions, policy_class)
        try:
            return not isinstance(self._environments.get(conditions.config.environment), CountedBuilder)
        except ConfigError:
            return True

    def _environment(self, job: JobConfig) -> _FoundEnvironment:
        """Return what builds a job's environment, with everything that is wrong with its options.

        Raises:
            ConfigError: If there is no such environment.
        """
        if job.environment.lower().endswith((".yaml", ".yml")):
            message = f"'{job.environment}' is a graph specification; this version builds registered environments only"
            raise ConfigError(Problem(message, key="arena_env_args.environment"))
        builder = _keyed("arena_env_args.environment", lambda: self._environments.get(job.environment))
        owner = f"environment '{job.environment}'"
        known = option_names(builder.config_class) or frozenset()
        own, renamed = _keyed(
            "arena_env_args", lambda: in_own_options(job.environment_args, known, name=job.environment)
        )
        reading = _Reading("arena_env_args", renamed)
        options = dict(own)
        if job.enable_cameras and "enable_cameras" in known:
            options["enable_cameras"] = True
        elif job.enable_cameras:
            reading.add([Problem(f"{owner} has no cameras", key="enable_cameras")])
        config = reading.read(
            lambda given: read_options(builder.config_class, given, owner=owner, other_names=COMMON_ENVIRONMENT_KEYS),
            options,
        )
        # Code that may not run is not asked for more problems.
        is_trusted = self._may_import or config is None or reading.check(lambda: _refuse_foreign_code(builder, config))
        if config is not None and not (is_trusted and reading.check(lambda: _checked(builder, config, owner))):
            config = None
        return _FoundEnvironment(builder=builder, config=config, own_args=own, problems=tuple(reading.problems))

    def _conditions(self, job: JobConfig, environment: _FoundEnvironment) -> JobConditions:
        builder, environment_config = environment.pair

        def catalogue(of: JobConfig) -> tuple[Variation, ...]:
            if not isinstance(builder, VariableEnvironmentBuilder):
                message = f"environment '{of.environment}' has no variations; leave them out"
                raise ConfigError(Problem(message, key="variations"))
            return builder.variations(environment_config)

        def catalogue_once() -> tuple[Variation, ...]:
            found = self._once("catalogue", [job.environment, job.environment_args], catalogue, job)
            if isinstance(found, ConfigError):
                raise found
            return found

        return job_conditions(
            job,
            builder=builder,
            environment_config=environment_config,
            catalogue=catalogue_once,
            directory=self._directory,
        )

    def _policy(self, job: JobConfig) -> _FoundPolicy:
        """Return the class of a job's policy, with everything that is wrong with its options.

        Raises:
            ConfigError: If there is no such class, or it cannot be a policy of the job.
        """
        policy_class = self._policy_class or _keyed(
            "policy_type", lambda: resolve_policy_class(job.policy_type, may_import=self._may_import)
        )
        undefined = sorted(getattr(policy_class, "__abstractmethods__", ()))
        if undefined:
            message = f"'{job.policy_type}' is no complete policy: it does not define {', '.join(undefined)}"
            raise ConfigError(Problem(message, key="policy_type"))
        num_envs = _keyed("arena_env_args.num_envs", lambda: self._batch(job, policy_class))
        options = dict(job.policy_config_dict)
        # A class that reads its dict itself knows best what may be in it.
        if overrides(policy_class, "from_dict"):
            refuse_unshareable(policy_class, job, options=None)
            return _FoundPolicy(policy_class=policy_class, options=options, placement={})
        owner = f"policy '{job.policy_type}'"
        declared = _keyed("policy_type", lambda: declared_options(policy_class))
        known = declared.names
        refuse_unshareable(policy_class, job, options=known)
        placement: dict[str, Any] = {}
        if known is not None:
            options |= {key: value for key, value in self._overrides.items() if key in known}
            if "num_envs" in known:
                options["num_envs"] = num_envs
            placement = self._placement(policy_class, declared, options, is_served=job.policy_server is not None)
        placed = {**options, **placement}
        reading = _Reading("policy_config_dict")
        config = reading.read(lambda given: declared.read(given, owner=owner), placed)
        if config is not None or not reading.problems:
            is_trusted = self._may_import or reading.check(lambda: _refuse_foreign_code(policy_class, config))
            if policy_class.traits.uses_own_device:
                named = [name for name in ("policy_device_id", "policy_device") if name in placed and known is not None]
                devices = {name: getattr(config, name, None) for name in named}
                is_there = reading.check(lambda: self._check_device(job, devices))
                if not is_there and dataclasses.is_dataclass(config) and not isinstance(config, type):
                    # What else is wrong shows on the CPU too.
                    config = dataclasses.replace(config, **{name: _ON_NO_GPU[name] for name in named})
            if is_trusted:
                reading.check(lambda: policy_class.check_options(config))
        return _FoundPolicy(
            policy_class=policy_class, options=options, placement=placement, problems=tuple(reading.problems)
        )

    def _placement(
        self,
        policy_class: type[PolicyBase],
        declared: DeclaredOptions,
        options: Mapping[str, Any],
        *,
        is_served: bool,
    ) -> dict[str, Any]:
        """Return where a policy runs of which nobody says it: on the CPU that all are kept on, or the rank's GPU."""
        if is_served:
            # Its network is in the policy server, and nothing of it needs the rank's GPU.
            return {name: value for name, value in _ON_NO_GPU.items() if name in (declared.names or ())}
        if not policy_class.traits.uses_own_device or any(options.get(name) is not None for name in _NAMES_A_DEVICE):
            return {}
        if self._policies_on_cpu and "policy_device" in (declared.names or ()):
            return {"policy_device": "cpu"}
        # The defaults of Arena's classes take a GPU for granted, and the first one for every rank's.
        defaults = {name: str(declared.defaults.get(name)) for name in ("policy_device", "device")}
        return {name: self._place_of(default) for name, default in defaults.items() if default.startswith("cuda")}

    def _place_of(self, default: str) -> str:
        if self._policies_on_cpu or resolve_policy_device().type == "cpu":
            return "cpu"
        return str(resolve_policy_device(policy_device=default))

    def _check_device(self, job: JobConfig, devices: Mapping[str, Any]) -> None:
        overruled = check_policy_device(**devices)
        if overruled is not None:
            self._overruled.setdefault(overruled, job.name)
        resolve_policy_device(**devices)

    def _batch(self, job: JobConfig, policy_class: type[PolicyBase]) -> int:
        """Return the size of the batch that a policy is asked on."""
        batch = batch_of(policy_class, self._policy_batch, num_envs=job.num_envs)
        check_policy_batch(batch, num_envs=job.num_envs)
        return batch


class _Reading:
    """One reading of options: collects what is wrong with them instead of stopping at the first.

    Args:
        prefix: The key that the options stand under.
        renamed: Options to what they are called in the file, where that differs.

    Attributes:
        problems: What is wrong so far, each with the key of the file.
    """

    def __init__(self, prefix: str, renamed: Mapping[str, str] | None = None) -> None:
        self._prefix = prefix
        self._renamed = renamed
        self._wrong: set[str] = set()
        self._given: frozenset[str] | None = None
        self.problems: list[Problem] = []

    def add(self, problems: Sequence[Problem]) -> None:
        """Take note of problems that name options."""
        self._wrong |= {(problem.key or "").partition(".")[0] for problem in problems}
        self.problems += _in_file(problems, self._prefix, self._renamed)

    def read(self, read: Callable[[Mapping[str, Any]], Any], options: Mapping[str, Any]) -> Any:
        """Return what options are read as, without those that are wrong; None where nothing comes of the others."""
        try:
            return read(options)
        except ConfigError as error:
            self.add(error.problems)
        self._given = frozenset(options)
        sound = {name: value for name, value in options.items() if name not in self._wrong}
        try:
            return read(sound) if len(sound) < len(options) else None
        except ConfigError:
            return None

    def check(self, act: Callable[[], object]) -> bool:
        """Do something; return whether it found nothing wrong.

        Where options were left out, what is wrong without them is not told: only what is wrong with one that was given.
        """
        try:
            act()
        except ConfigError as error:
            names = [(problem, (problem.key or "").partition(".")[0]) for problem in error.problems]
            told = [
                problem
                for problem, name in names
                if self._given is None or (name in self._given and name not in self._wrong)
            ]
            self.problems += _in_file(told, self._prefix, self._renamed)
            return False
        return True


def _counted(job: JobConfig, environment: _FoundEnvironment, *, policy_counts: bool) -> JobConfig:
    """Return a job with the number of episodes that its environment has, where neither it nor its policy names one."""
    builder, environment_config = environment.pair
    count = builder.num_episodes(environment_config) if isinstance(builder, CountedBuilder) else None
    if count is None:
        return job
    if job.num_steps is not None:
        message = f"counts steps, and '{job.environment}' has {count} episodes: give num_episodes"
        raise ConfigError(Problem(message, key="num_steps"))
    if job.num_episodes is None and job.conditions is None and not policy_counts:
        return dataclasses.replace(job, num_episodes=min(count, job.max_episodes or count))
    if (job.num_episodes or 0) > count:
        message = (
            f"is {job.num_episodes}, and '{job.environment}' has {count} episodes with these options; play all or fewer"
        )
        raise ConfigError(Problem(message, key="num_episodes"))
    return job


def _checked_fit(environment: _Environment, policy: _Policy) -> tuple[Connections | None, tuple[str, ...]]:
    """Refuse a policy that does not fit the environment, and return what it is shown, if milliseconds tell that."""
    builder, environment_config = environment
    policy_class, options = policy
    if not overrides(policy_class, "check_fit") or not isinstance(builder, SampleBuilder):
        return None, ()
    try:
        sample = builder.sample(environment_config)
    except EnvironmentBuildError:
        # Its job will tell, and fail alone.
        return None, ()
    config = declared_options(policy_class).read(options, owner="policy")
    try:
        connections = _keyed("policy_config_dict", lambda: policy_class.check_fit(config, sample))
        return connections, () if connections is None else tuple(connections.doubts(sample))
    finally:
        sample.close()


def _has_no_length(conditions: JobConditions, policy_class: type[PolicyBase]) -> bool:
    job = conditions.config
    # Saved conditions have a length, even where they turned out to be wrong.
    if job.num_steps is not None or job.num_episodes is not None or job.conditions is not None:
        return False
    return not _counts_itself(policy_class)


def _counts_itself(policy_class: type[PolicyBase]) -> bool:
    """Return whether a policy may say itself how many episodes or steps it plays."""
    return any(overrides(policy_class, name) for name in ("has_length", "is_recording", "num_episodes"))


def _refuse_foreign_code(owner: EnvironmentBuilder | type[PolicyBase], config: Any) -> None:
    _refuse(owner.foreign_code(config) if isinstance(owner, LoadsCode) else ())


def _refuse(found: Sequence[Problem]) -> None:
    why = "only what is registered may be loaded here (--no_import; to replay a recording, see --allow_import)"
    if found:
        raise ConfigError([dataclasses.replace(problem, message=f"{problem.message}; {why}") for problem in found])


def _checked(builder: EnvironmentBuilder, config: Any, owner: str) -> None:
    try:
        builder.check(config)
    except ConfigError:
        raise
    except Exception as error:  # another package's code may fail in any way
        raise ConfigError(f"the check of {owner} fails: {type(error).__name__}: {error}") from error


def _keyed(prefix: str, act: Callable[[], Any]) -> Any:
    """Do something, and put a key before what its problems name."""
    try:
        return act()
    except ConfigError as error:
        raise ConfigError(_in_file(error.problems, prefix)) from error


def _in_file(problems: Sequence[Problem], prefix: str, renamed: Mapping[str, str] | None = None) -> list[Problem]:
    """Return problems with the key of the file in place of the option that they name.

    Args:
        problems: What is wrong.
        prefix: The key that the options stand under.
        renamed: Options to what they are called in the file, where that differs.
    """
    in_file = renamed or {}
    return [
        dataclasses.replace(problem, key=f"{prefix}.{in_file.get(problem.key, problem.key)}" if problem.key else prefix)
        for problem in problems
    ]
