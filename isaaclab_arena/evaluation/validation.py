"""Jobs checked against the environments and policies that exist, before anything is simulated, and their arms."""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from isaaclab_arena.config.arena import in_own_options
from isaaclab_arena.config.expansion.suites import (
    AXIS_LABEL,
    BENIGN,
    CONTROL_LABEL,
    CONTROLS_KEY,
    LEVEL_LABEL,
    RECORDED_CONTROLS,
    ROBUSTNESS_KEY,
    Controls,
    Robustness,
)
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.config.schema import COMMON_ENVIRONMENT_KEYS, UNREADABLE, JobConfig, name_problem
from isaaclab_arena.distributed.devices import (
    check_policy_device,
    cpu_holds_for_policy,
    default_num_threads,
    resolve_policy_device,
)
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import (
    ALL_AXES,
    AXES,
    CONTROLLED,
    LANGUAGE,
    enabled_variations,
)
from isaaclab_arena.environments.variations.senses import SensedEnvironment, offered_variations
from isaaclab_arena.errors import (
    ConfigError,
    EnvironmentBuildError,
    Problem,
    did_you_mean,
    placed,
    problems_at,
    problems_into,
    refuse,
)
from isaaclab_arena.evaluation import batching, latency, policy_client, process
from isaaclab_arena.evaluation.job import Job, changed_options, saved_set
from isaaclab_arena.interfaces.connections import Description
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Variation, completed, spelled
from isaaclab_arena.interfaces.episode import conditions_from_json
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.policy_options import DeclaredOptions, declared_options
from isaaclab_arena.policy.catalog import LentPolicy, resolve_policy_class


def without_repeats(found: Sequence[tuple[JobConfig, Problem]]) -> list[Problem]:
    """Keep the first of equal problems of a suite's tasks, with the number of other tasks; order is kept."""
    groups: dict[object, list[tuple[JobConfig, Problem]]] = {}
    for position, (job, problem) in enumerate(found):
        mistake: object = position
        if job.suite is not None:
            # Messages are equal if they differ in the task's name alone.
            task = job.environment.partition(":")[2] or job.environment
            mistake = job.suite.name, problem.key, problem.message.replace(task, "")
        groups.setdefault(mistake, []).append((job, problem))
    kept = []
    for group in groups.values():
        job, problem = group[0]
        others = len({each.name for each, _ in group}) - 1
        if others and job.suite is not None:
            tasks = "another task" if others == 1 else f"{others} other tasks"
            message = f"{problem.message} (the same for {tasks} of suite '{job.suite.suite}')"
            problem = replace(problem, message=message)
        kept.append(problem)
    return kept


# Compare the description in a policy's files with the job that uses them.

ENV_NAME, ENV_OPTIONS, ENV_CAMERAS, ENV_VARIATIONS = "env_name", "env_kwargs", "enable_cameras", "variations"
"""Keys of a recording's ``env_args``."""


def held_against_files(job: Job, described: Description) -> Job:
    """Return the job with its differences from its policy's files. `ConfigError` if they lack an episode of it."""
    doubts = (*job.doubts, *described.doubts, *_doubts(job, described))
    for index in range(job.num_played or 0):
        if index in described.unreadable:
            raise ConfigError(f"episode {index}: {described.unreadable[index]}", key="num_episodes")
        if index not in (described.episodes or {}):
            message = f"{described.source} holds {described.holds}: none for episode {index} of {job.num_played}"
            raise ConfigError(f"{message}; {described.way_out}", key="num_episodes")
    return replace(job, doubts=doubts)


def _doubts(job: Job, described: Description) -> list[str]:
    """Describe in one sentence how the job differs from the files' origin; empty if it does not."""
    config, source, name = job.config, described.source, described.environment.get(ENV_NAME)
    if name and name != config.environment:
        # In another environment all other differences have no meaning.
        return [f"{source} was recorded in '{name}', and is used in '{config.environment}'"]

    # The options of the environment, without those that leave the same actions the same.
    differences = []
    told, without_effect = described.environment.get(ENV_OPTIONS), ("camera_", "viewport_", ENV_CAMERAS, "backend")
    if name and isinstance(told, Mapping) and is_dataclass(job.environment_config):
        try:
            changed = changed_options(job.builder, told, job.environment_config, owner="it")
        except ConfigError as error:
            differences.append(f"its environment differed, it had {error.problems[0].key}")
        else:
            differences += [
                f"{option} was {was!r}, and is {now!r}"
                for option, (was, now) in changed.items()
                if not option.startswith(without_effect)
            ]

    # The conditions from which its episodes start.
    varied = described.environment.get(ENV_VARIATIONS)
    if name and varied is not None:
        was, now = (json.loads(json.dumps(each, default=str)) for each in (varied, spelled(job.variations)))
        if was != now:
            differences.append("other variations were enabled")
    seed = config.seed if config.placement_seed is None else config.placement_seed
    moved = next(((index, number) for index, number in (described.episodes or {}).items() if index != number), None)
    if described.seed is not None and job.saved_conditions is None and described.seed != seed:
        differences.append(f"episodes started from other conditions, with seed {described.seed} and not {seed}")
    elif described.seed is not None and job.saved_conditions is None and moved is not None:
        differences.append(f"episode {moved[0]} starts from other conditions than the recorded episode {moved[1]}")
    return [f"{source} was recorded with other settings: {'; '.join(differences)}"] if differences else []


_Result = TypeVar("_Result")
_Fields: TypeAlias = dict[str, Any]  # some fields of a `Job`
_MISSING = "is missing"
_LOG = logging.getLogger(__name__)
_ON_NO_GPU = {policy_client.DEVICE_OPTION: "cpu", "policy_device_id": None}


def resolve_jobs(
    jobs: Sequence[JobConfig],
    *,
    file: str | None = None,
    known: Sequence[Problem] = (),
    overrides: Mapping[str, Any] | None = None,
    may_import: bool = True,
    policy_batch: int | None = None,
    device: str | None = None,
    policy: type[PolicyBase] | LentPolicy | None = None,
) -> tuple[Job, ...]:
    """Find each job's environment and policy and check all options; `ConfigError` with every problem of all jobs."""
    # `known`: problems of the reading of `jobs`, which come first; the readable part of the jobs is checked even so.
    # `overrides`: options of the command line for every policy that has them; None means not given. `may_import`:
    # whether a job may name code, such as a class path, a module or an interpreter. `policy_batch`: env slots of each
    # policy call, None for the job's num_envs. `device`: `--device` of the user.
    resolver = _Resolver(
        overrides={key: value for key, value in (overrides or {}).items() if value is not None},
        directory=Path(file or "").parent,
        may_import=may_import,
        policy_batch=policy_batch,
        policies_on_cpu=cpu_holds_for_policy(device),
        policy=policy,
    )
    resolved: list[Job] = []
    problems: list[tuple[JobConfig, Problem]] = []
    # A problem of the file itself touches its jobs if it is in a block that gives them keys.
    shared = ("defaults", "shared", "sweep", "variables")
    broken = {each.job for each in known if each.job is not None or (each.key or "").startswith(shared)}
    for job in jobs:
        found, wrong = resolver.resolve(job)
        # A key that is missing may be in the part of the job that could not be read.
        is_whole = broken.isdisjoint({None, job.name})
        problems += [
            (job, replace(problem, file=file, job=job.name))
            for problem in wrong
            if is_whole or not problem.message.startswith(_MISSING)
        ]
        if found is not None:
            resolved.append(found)
    if known or problems:
        raise ConfigError([*known, *without_repeats(problems)])
    if resolver.overruled:
        _LOG.info(
            "under a launcher each rank's policy runs on the rank's own GPU, whatever these say: %s",
            ", ".join(f"{named} of job '{job}'" for named, job in resolver.overruled.items()),
        )
    return tuple(resolved)


@dataclass(kw_only=True)
class _Resolver:
    """Resolves jobs one by one; shared environments and policies are resolved once."""

    overrides: Mapping[str, Any]  # options of the command line for every policy that has them
    directory: Path  # base of relative paths
    may_import: bool
    policy_batch: int | None
    policies_on_cpu: bool
    policy: type[PolicyBase] | LentPolicy | None  # of every job, None for the class that a job names
    known: dict[str, Any] = field(default_factory=dict)  # results and errors, see `_once`
    imports: process.Imports = field(default_factory=process.Imports)
    # Devices that LOCAL_RANK overrules, each with the first job that names it.
    overruled: dict[str, str] = field(default_factory=dict)

    def resolve(self, job: JobConfig) -> tuple[Job | None, list[Problem]]:
        """Return the job ready to run, or None and its problems."""
        problems: list[Problem] = []
        of_options: list[Problem] = []
        wanted = [job.environment, job.environment_args, job.enable_cameras]
        # Of environment and policy: the fields of `Job`, empty if it is not found, and the problems of its options.
        environment, own_args, environment_problems = _Fields(), dict[str, Any](), list[Problem]()
        policy, offers, policy_problems = _Fields(), frozenset[str](), list[Problem]()
        # The problem of an unreadable name is reported already.
        with problems_into(of_options):
            if job.environment != UNREADABLE:
                environment, own_args, environment_problems = self._once("environment", wanted, self._environment, job)
        of_options += environment_problems
        if job.chooses_num_envs and environment.get("environment_config") is not None:
            job = replace(job, num_envs=self._paying_num_envs(job, **environment))
        asked = [job.policy_type, job.policy_config_dict, job.num_envs, str(job.policy_server)]
        with problems_into(of_options):
            if job.policy_type != UNREADABLE:
                policy, offers, policy_problems = self._once("policy", asked, self._policy, job)
        of_options += policy_problems
        if of_options and environment and policy:
            of_options = _with_places(of_options, environment["builder"], policy["policy_class"])

        conditions: _Fields = {"config": job}
        # A policy may set the number of episodes or steps itself.
        counts_itself = not offers.isdisjoint(("has_length", "is_recording", "num_episodes"))
        is_sound = bool(environment) and not environment_problems
        if environment.get("environment_config") is not None:
            if own_args != job.environment_args:
                job = replace(job, environment_args=own_args)
            with problems_into(problems):
                conditions = self._conditions(job, environment, is_sound=is_sound, policy_counts=counts_itself)
        problems += of_options

        # The end of a job is its own, that of its saved conditions (even if they are wrong), its policy's or its
        # environment's. An environment with wrong options may still set it.
        config = conditions["config"]
        has_end = counts_itself or config.conditions is not None
        has_end |= config.num_steps is not None or config.num_episodes is not None
        if policy and not (has_end or is_sound):
            with suppress(ConfigError):
                has_end = completed(ENVIRONMENTS.get(job.environment)).counts_episodes
        if policy and not has_end:
            message = f"{_MISSING}: '{job.policy_type}' has no length of its own, so give num_episodes or num_steps"
            problems.append(Problem(message, key="num_episodes"))
        if not (policy and is_sound) or policy_problems:
            return None, problems

        found = {**environment, **policy}
        with problems_into(problems):
            fit = self._once("fit", [str(job.latency), *wanted, *asked], partial(self._fit, found), job)
            if not problems:
                whole = Job(**fit, **conditions, **found)
                return whole if whole.described is None else held_against_files(whole, whole.described), []
        return None, problems

    def _paying_num_envs(self, job: JobConfig, builder: EnvironmentBuilder, environment_config: Any) -> int:
        """Return the number of env slots for a job that leaves it open: as many as pay, and not more than episodes."""
        # Steps are counted over all env slots. A policy whose author promises nothing may keep one memory for all env
        # slots, with which episodes side by side would be other ones.
        traits = PolicyTraits()
        with suppress(ConfigError):
            given = self.policy or resolve_policy_class(job.policy_type, may_import=self.may_import)
            traits = given.policy.traits if isinstance(given, LentPolicy) else given.traits
        if job.num_steps is not None or not (traits.reproducible or traits.serves_any_num_envs):
            return 1
        paying = builder.paying_num_envs(environment_config, num_threads=default_num_threads())
        episodes = job.num_episodes or builder.num_episodes(environment_config) or paying
        in_a_build = -(-min(episodes, job.max_episodes or episodes) // job.num_rebuilds)
        return max(1, min(paying, in_a_build, self.policy_batch or paying))

    def _fit(self, found: Mapping[str, Any], job: JobConfig) -> dict[str, Any]:
        """Check policy and environment against each other, and return the fields of `Job` that follow from both."""
        builder, policy_class = found["builder"], found["policy_class"]
        environment_config = found["environment_config"]
        options = {**found["policy_options"], **found["policy_placement"]}
        connections, doubts, described = None, (), None
        # Only a builder with a sample can tell without a simulation.
        if "check_fit" in policy_class.offers:
            # If the sample cannot be built, the job will fail with this error, alone.
            sample = None
            with suppress(EnvironmentBuildError):
                sample = builder.sample(environment_config)
            if sample is not None:
                config = declared_options(policy_class).read(options, owner="policy")
                with closing(sample):
                    with problems_at(below="policy_config_dict"):
                        connections = policy_class.check_fit(config, sample)
                    doubts = () if connections is None else tuple(connections.doubts(sample))
        if "description" in policy_class.offers:
            config = declared_options(policy_class).read(options, owner="policy")
            with problems_at(below="policy_config_dict"):
                described = policy_class.description(config)
        fields: _Fields = {"connections": connections, "doubts": doubts, "described": described}
        if job.latency is not None:
            environment, policy = (builder, environment_config), (policy_class, options)
            delays, latencies_ms = latency.job_latency(job.latency, self.directory, environment, policy)
            fields |= {"delays": delays, "latencies_ms": latencies_ms}
        return fields

    def _once(self, what: str, key: Any, resolve: Callable[[JobConfig], _Result], job: JobConfig) -> _Result:
        """Resolve once for each key. Return the result, or raise its error, for every job that shares the key."""
        index = what + json.dumps(key, sort_keys=True)
        if index not in self.known:
            try:
                self.known[index] = resolve(job)
            except ConfigError as error:
                self.known[index] = error
            # An import may change settings of the process: they are put back, and the owner is named.
            named = {"environment": job.environment, "policy": job.policy_type}
            if what in named:
                self.imports.settle(f"{what} '{named[what]}'")
        if isinstance(self.known[index], ConfigError):
            raise ConfigError(self.known[index].problems)
        return self.known[index]

    def _environment(self, job: JobConfig) -> tuple[_Fields, dict[str, Any], list[Problem]]:
        """Return a job's environment, its options under their own names, and their problems; `ConfigError` for none."""
        if job.environment.lower().endswith((".yaml", ".yml")):
            message = f"'{job.environment}' is a graph specification; this version builds registered environments only"
            raise ConfigError(message, key="arena_env_args.environment")
        with problems_at(below="arena_env_args.environment"):
            builder = completed(ENVIRONMENTS.get(job.environment))
        owner = f"environment '{job.environment}'"
        known = option_names(builder.config_class) or frozenset()
        with problems_at(below="arena_env_args"):
            own, renamed = in_own_options(job.environment_args, known, name=job.environment)

        options, problems, wrong = dict(own), list[Problem](), list[Problem]()
        if job.enable_cameras and "enable_cameras" in known:
            options["enable_cameras"] = True
        elif job.enable_cameras:
            problems.append(Problem(f"{owner} has no cameras", key="enable_cameras"))
        config, unread = _read_sound(
            lambda given: read_options(builder.config_class, given, owner=owner, other_names=COMMON_ENVIRONMENT_KEYS),
            options,
        )
        if config is not None:
            with problems_into(wrong):
                # The check may run foreign code, so it is skipped if that is refused.
                if not self.may_import:
                    _refuse_foreign_code(builder, config)
                try:
                    builder.check(config)
                except ConfigError:
                    raise
                except Exception as error:  # another package's code may fail in any way
                    raise ConfigError(f"the check of {owner} fails: {type(error).__name__}: {error}") from error
        problems += _with_checks(unread, wrong, options)
        renamed_back = [replace(each, key=renamed.get(each.key or "", each.key)) for each in problems]
        fields = {"builder": builder, "environment_config": None if wrong else config}
        return fields, own, placed(renamed_back, below="arena_env_args")

    def _conditions(self, job: JobConfig, environment: _Fields, *, is_sound: bool, policy_counts: bool) -> _Fields:
        """Return a job's `config`, `variations` and saved conditions; `ConfigError`, with keys within the job."""
        # Saved conditions set the number of episodes and the seed of the conditions.
        builder, environment_config = environment["builder"], environment["environment_config"]

        # The environment's number of episodes counts, if neither the job nor its policy sets one. It may depend on an
        # option that is wrong.
        count = builder.num_episodes(environment_config) if is_sound else None
        if count is not None and job.num_steps is not None:
            message = f"counts steps, and '{job.environment}' has {count} episodes: give num_episodes"
            raise ConfigError(message, key="num_steps")
        if count is not None and (job.num_episodes or 0) > count:
            message = f"is {job.num_episodes}, and '{job.environment}' has {count} episodes with these options"
            raise ConfigError(f"{message}; play all or fewer", key="num_episodes")
        if count is not None and job.num_episodes is None and job.conditions is None and not policy_counts:
            job = replace(job, num_episodes=min(count, job.max_episodes or count))

        chosen = None
        if job.conditions is not None:
            chosen = saved_set(job, builder, environment_config, self.directory)

        offered: tuple[Variation, ...] = ()
        wanted = job.variations if chosen is None else chosen.variations
        if wanted or chosen is not None:
            key = [job.environment, job.environment_args, wanted if builder.variations_take_time else None]
            offered = self._once(
                "catalogue", key, lambda _: offered_variations(builder, environment_config, wanted), job
            )
        try:
            enabled = enabled_variations(offered, wanted) if wanted else ()
        except ConfigError as error:
            if chosen is None:
                raise
            message = f"set '{chosen.job}' needs what this environment does not have: {error.problems[0].message}"
            raise ConfigError(message, key="conditions") from error
        if chosen is None:
            unheard = [each.key for each in enabled if each.asset == "instruction"]
            if unheard and job.language_instruction is not None:
                message = f"'{unheard[0]}' varies the task's words, and the job says its own (language_instruction)"
                raise ConfigError(f"{message}; leave out one of them", key="variations")
            return {"config": job, "variations": enabled}

        # Refuse a set that does not fit the environment. An episode may lack a key that the environment needs, or have
        # one that it would ignore.
        limits = {variation.key: variation for variation in (*offered, *enabled)}
        needed = {variation.key for variation in offered if variation.is_drawn_anyway}
        known = needed.union(*({variation.key, *variation.companions} for variation in enabled))
        saved = tuple(map(conditions_from_json, chosen.episodes))
        # Only an environment that varies what it draws says what its conditions are.
        is_closed = bool(needed)
        for index, episode in enumerate(saved):
            unknown = [key for key in episode if is_closed and key not in known]
            wrong = [f"'{key}' is no condition of it{did_you_mean(key, known)}" for key in unknown]
            wrong += [f"'{key}' is missing" for key in sorted(needed - episode.keys())]
            checked = {key: limits[key].problem_with(value) for key, value in episode.items() if key in limits}
            wrong += [f"'{key}' {problem}" for key, problem in checked.items() if problem is not None]
            if wrong:
                place = f"{job.conditions or ''}: set '{chosen.job}': episode {index}"
                raise ConfigError(f"{place}: {wrong[0]}", key="conditions")

        has_length = job.num_episodes is not None or job.num_steps is not None
        config = replace(
            job,
            num_episodes=job.num_episodes if has_length else len(chosen.episodes[: job.max_episodes]),
            placement_seed=None if chosen.seed == job.seed else chosen.seed,
        )
        return {"config": config, "variations": enabled, "saved_conditions": saved}

    def _policy(self, job: JobConfig) -> tuple[_Fields, frozenset[str], list[Problem]]:
        """Return a job's policy, its offers, and the problems of its options; `ConfigError` if it cannot be used."""
        with problems_at(below="policy_type"):
            given = self.policy or resolve_policy_class(job.policy_type, may_import=self.may_import)
        lent = given if isinstance(given, LentPolicy) else None
        policy_class = PolicyBase if isinstance(given, LentPolicy) else given
        asked = given.policy if isinstance(given, LentPolicy) else given
        undefined = sorted(getattr(policy_class, "__abstractmethods__", ()))
        if undefined and lent is None:
            message = f"'{job.policy_type}' is not a complete policy: it does not define {', '.join(undefined)}"
            raise ConfigError(message, key="policy_type")
        # The policy's num_envs is the number of env slots in each of its calls.
        with problems_at(below="arena_env_args.num_envs"):
            num_envs = batching.batch_of(asked.traits, self.policy_batch, num_envs=job.num_envs)
        options = dict(job.policy_config_dict)

        # A class with its own `from_dict` checks its options itself, and an object has them.
        declared = None
        if lent is None and "from_dict" not in policy_class.offers:
            with problems_at(below="policy_type"):
                declared = declared_options(policy_class)
        known = None if declared is None else declared.names
        if job.policy_server is not None:
            policy_client.refuse_unshareable(policy_class, job, job.policy_server, options=known)
        if declared is None:
            found = {"policy_class": policy_class, "policy_options": options, "policy_placement": {}, "lent": lent}
            return found, asked.offers, []

        # The options: the job's, the command line's, and those of this process because of its device.
        owner = f"policy '{job.policy_type}'"
        placement: dict[str, Any] = {}
        if known is not None:
            own = {**self.overrides, "num_envs": num_envs}
            options |= {key: value for key, value in own.items() if key in known}
            placement = self._placement(policy_class, declared, options, is_served=job.policy_server is not None)
        whole, checked = {**options, **placement}, list[Problem]()
        config, unread = _read_sound(partial(declared.read, owner=owner), whole)
        if config is not None or not unread:
            with problems_into(checked):
                if not self.may_import:
                    _refuse_foreign_code(policy_class, config)
            is_refused = bool(checked)
            if policy_class.traits.uses_own_device:
                named = [name for name in ("policy_device_id", "policy_device") if name in whole and known is not None]
                devices: dict[str, Any] = {name: getattr(config, name, None) for name in named}
                wrong = list[Problem]()
                with problems_into(wrong):
                    if (overruled := check_policy_device(**devices)) is not None:
                        self.overruled.setdefault(overruled, job.name)
                    resolve_policy_device(**devices)
                if wrong and is_dataclass(config) and not isinstance(config, type):
                    # Without the device, the other options can still be checked on the CPU.
                    config = replace(config, **{name: _ON_NO_GPU[name] for name in named})
                checked += wrong
            if not is_refused:
                with problems_into(checked):
                    policy_class.check_options(config)
        found = {"policy_class": policy_class, "policy_options": options, "policy_placement": placement}
        problems = placed(_with_checks(unread, checked, whole), below="policy_config_dict")
        return found, policy_class.offers, problems

    def _placement(
        self, policy_class: type[PolicyBase], declared: DeclaredOptions, options: Mapping[str, Any], *, is_served: bool
    ) -> dict[str, Any]:
        """Return the default device options: CPU if policies are kept there, else this rank's GPU."""
        if is_served:
            # The network is in the policy server, so the client does not need the rank's GPU.
            return {name: value for name, value in _ON_NO_GPU.items() if name in (declared.names or ())}
        names = ("policy_device", "policy_device_id", "device")
        if not policy_class.traits.uses_own_device or any(options.get(name) is not None for name in names):
            return {}
        if self.policies_on_cpu and "policy_device" in (declared.names or ()):
            return {"policy_device": "cpu"}
        # The defaults of Arena's classes name the first GPU, which may be absent or belong to another rank.
        defaults = {name: str(declared.defaults.get(name)) for name in ("policy_device", "device")}
        on_gpu = {name: default for name, default in defaults.items() if default.startswith("cuda")}
        if on_gpu and (self.policies_on_cpu or resolve_policy_device().type == "cpu"):
            return dict.fromkeys(on_gpu, "cpu")
        return {name: str(resolve_policy_device(policy_device=default)) for name, default in on_gpu.items()}


def _read_sound(
    read: Callable[[Mapping[str, Any]], _Result], options: Mapping[str, Any]
) -> tuple[_Result | None, tuple[Problem, ...]]:
    """Return the options as read, without the wrong ones, and the problems of those; None if that fails too."""
    try:
        return read(options), ()
    except ConfigError as error:
        wrong = error.problems
    sound = {name: value for name, value in options.items() if name not in _named_by(wrong)}
    with suppress(ConfigError):
        return read(sound) if len(sound) < len(options) else None, wrong
    return None, wrong


def _with_places(
    problems: Sequence[Problem], builder: EnvironmentBuilder, policy_class: type[PolicyBase]
) -> list[Problem]:
    """Name the place of each option that the other one of environment and policy has."""
    names: dict[str, Collection[str]] = {"arena_env_args": option_names(builder.config_class) or ()}
    with suppress(ConfigError):
        names["policy_config_dict"] = declared_options(policy_class).names or ()
    found = []
    for problem in problems:
        own, _, option = (problem.key or "").partition(".")
        other = next((place for place in names if place != own and option in names[place]), None)
        is_misplaced = own in names and option not in names[own] and other is not None
        more = f"; this one belongs in {other}" if is_misplaced else ""
        found.append(replace(problem, message=f"{problem.message}{more}"))
    return found


def _with_checks(wrong: Sequence[Problem], checked: Sequence[Problem], given: Collection[str]) -> list[Problem]:
    """Return the problems that `_read_sound` found, and those of checks of what it read."""
    # If options were left out, a problem counts only if it names one that was given: others may follow from the gap.
    sound = {*given} - _named_by(wrong)
    return [*wrong, *(problem for problem in checked if not wrong or _named_by([problem]) <= sound)]


def _named_by(problems: Sequence[Problem]) -> set[str]:
    return {(problem.key or "").partition(".")[0] for problem in problems}


def _refuse_foreign_code(owner: EnvironmentBuilder | type[PolicyBase], config: Any) -> None:
    why = "only registered names are allowed here (--no_import; to replay a recording, see --allow_import)"
    refuse([replace(problem, message=f"{problem.message}; {why}") for problem in owner.foreign_code(config)])


def environment_args(job: Job) -> dict[str, Any]:
    """Return the recorded description of a job's environment; the number of env slots is not part of it."""
    config = job.config
    return {
        ENV_NAME: config.environment,
        ENV_OPTIONS: dict(config.environment_args),
        ENV_CAMERAS: config.enable_cameras,
        ENV_VARIATIONS: dict(spelled(job.variations)),
    }


def recorded_environment_job(
    env_args: Mapping[str, Any], *, source: str | None, num_envs: int, cameras: bool, may_import: bool = False
) -> Job:
    """Return a job with the environment of a recording; `ConfigError` if it is not named or not found."""
    # `may_import` lets the recording name a module or an interpreter, which runs with the user's rights. Without
    # `cameras` no pictures are rendered. `source`: the recording, for messages.
    name = env_args.get(ENV_NAME)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"does not name its environment: env_args has no {ENV_NAME}", file=source)
    told = {key: env_args.get(key, {}) for key in (ENV_OPTIONS, ENV_VARIATIONS)}
    for key, value in told.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"env_args.{key} is no mapping but {value!r}", file=source)
    config = JobConfig(
        index=0,
        name=name,
        environment=name,
        environment_args=told[ENV_OPTIONS],
        enable_cameras=bool(env_args.get(ENV_CAMERAS)) and cameras,
        variations=told[ENV_VARIATIONS],
        num_envs=num_envs,
        policy_type="zero_action",
        num_episodes=1,
    )
    (job,) = resolve_jobs([config], file=source, may_import=may_import)
    return job


# Expand a job into its arms, all over the same episodes: of robustness the benign one, and one per level of each axis;
# of controls the job itself, and one per control.


def arms_of(job: JobConfig, asked: Robustness | Controls, *, may_import: bool = True) -> tuple[JobConfig, ...]:
    """Return the arms that a job asks for, the unchanged one first. `ConfigError` if it cannot have one of them."""
    make: Any = robustness_arms if isinstance(asked, Robustness) else control_arms
    return make(job, asked, may_import=may_import)


def robustness_arms(job: JobConfig, asked: Robustness, *, may_import: bool = True) -> tuple[JobConfig, ...]:
    """Return the arms of a job: itself unchanged, one for each axis and level, and all axes together."""
    # Names: `<job>-benign` with level 0, then `<job>-<axis>-<level>`. All have the labels `robustness` (the job's
    # name), `axis` and `level`. `ConfigError` if an axis or a level is not possible in this job.
    if job.conditions is not None:
        message = "changes the episodes, and 'conditions' says what they start from; leave out one of them"
        raise ConfigError(message, key=ROBUSTNESS_KEY)
    taken = [name for name in (ROBUSTNESS_KEY, AXIS_LABEL, LEVEL_LABEL) if name in job.labels]
    if taken:
        raise ConfigError("is a label that robustness sets", key=f"labels.{taken[0]}")
    [resolved] = resolve_jobs([job], may_import=may_import)
    catalogue = offered_variations(resolved.builder, resolved.environment_config)
    varied = frozenset(variation.key for variation in resolved.variations)

    # The variations of each axis and level, by axis.
    settings: dict[str, dict[int, dict[str, Any]]] = {}
    for name in _possible_axes(job, asked, catalogue, varied):
        settings[name] = {level: AXES[name].settings(catalogue, level) for level in asked.levels}
        for level, own in settings[name].items():
            try:
                enabled_variations(catalogue, own)
            except ConfigError as error:
                message = f"{name} has no level {level}: {error.problems[0].key} {error.problems[0].message}"
                raise ConfigError(message, key=f"{ROBUSTNESS_KEY}.levels") from error
    if len(settings) > 1:
        settings[ALL_AXES] = {
            level: {key: value for own in settings.values() for key, value in own[level].items()}
            for level in asked.levels
        }

    arms = []
    for axis, levels in {BENIGN: {0: {}}, **settings}.items():
        for level, own in levels.items():
            end = axis if axis == BENIGN else f"{axis}-{level}"
            labels = {**job.labels, ROBUSTNESS_KEY: job.name, AXIS_LABEL: axis, LEVEL_LABEL: str(level)}
            arm = replace(job, name=f"{job.name}-{end}", labels=labels, variations={**job.variations, **own})
            # Changed arms of a suite's tasks are a suite of their own: its rate must not be a mean with the benign one.
            if job.suite is not None and axis != BENIGN:
                arm = replace(arm, suite=replace(job.suite, name=f"{job.suite.name}-{end}"))
            arms.append(arm)
    wrong = next((problem for arm in arms if (problem := name_problem(arm.name))), None)
    if wrong is not None:
        raise ConfigError(f"with an axis and a level behind it, {wrong}", key="name")
    return tuple(arms)


def _possible_axes(
    job: JobConfig, asked: Robustness, catalogue: Sequence[Variation], varied: frozenset[str]
) -> tuple[str, ...]:
    """Return the names of the axes, in the order of `AXES`; `ConfigError` if a named one is not possible."""
    # The reason why the job cannot have an axis, None if it can.
    reasons: dict[str, str | None] = {}
    for name, axis in AXES.items():
        own = [variation.key for variation in axis.variations(catalogue)]
        also = [key for key in own if key in varied]
        reasons[name] = None
        if not own and name == LANGUAGE:
            reasons[name] = f"'{job.environment}' has no paraphrases; TaskSpec.paraphrases of a task lists them"
        elif axis.asset == "instruction" and job.language_instruction is not None:
            reasons[name] = "the job sets an instruction of its own (language_instruction)"
        elif not own:
            reasons[name] = f"'{job.environment}' has no such variation"
        elif axis.pictures_only and not job.enable_cameras:
            reasons[name] = "it changes pictures only, and the job has no cameras (enable_cameras)"
        elif also:
            reasons[name] = f"the job varies {also[0]} itself"
    available = tuple(name for name, reason in reasons.items() if reason is None)
    if asked.axes is None:
        for reason in dict.fromkeys(reason for reason in reasons.values() if reason is not None):
            left_out = ", ".join(name for name, own in reasons.items() if own == reason)
            _LOG.info("job '%s' runs without some axes of robustness: %s: %s", job.name, left_out, reason)
        return available
    problems = []
    for name in asked.axes:
        reason = reasons[name] if name in AXES else f"there is no such axis{did_you_mean(name, AXES)}"
        if reason is not None:
            message = f"'{name}': {reason}; this job has {', '.join(available)}"
            problems.append(Problem(message, key=f"{ROBUSTNESS_KEY}.axes"))
    refuse(problems)
    return tuple(name for name in available if name in asked.axes)


def control_arms(job: JobConfig, asked: Controls, *, may_import: bool = True) -> tuple[JobConfig, ...]:
    """Return the job itself with a label, and one arm for each control that needs no recording of it."""
    # Names: `<job>-<control>`. All have the labels `controls` (the job's name) and `control`. Arms of a suite's tasks
    # are a suite of their own. `ConfigError` if a control is not possible in this job.
    taken = [name for name in (CONTROLS_KEY, CONTROL_LABEL) if name in job.labels]
    if taken:
        raise ConfigError("is a label that controls set", key=f"labels.{taken[0]}")
    [resolved] = resolve_jobs([job], may_import=may_import)
    arms, problems = [], list[Problem]()
    for control in asked.names:
        name, labels = f"{job.name}-{control}", {**job.labels, CONTROLS_KEY: job.name, CONTROL_LABEL: control}
        arm = replace(job, name=name, labels=labels)
        if job.suite is not None:
            arm = replace(arm, suite=replace(job.suite, name=f"{job.suite.name}-{control}"))
        reason, words = _why_without(control, resolved), None
        if control == "swapped_instruction" and reason is None:
            own, words = _words(job, may_import=may_import), None
            told = (other for each in asked.others if (other := _words(each, may_import=may_import)))
            words = next((each for each in told if each.casefold() != (own or "").casefold()), None)
            where = f"task of suite '{job.suite.suite}'" if job.suite else "job of the file"
            reason = None if words else f"no other {where} says other words than '{own}'"
        if reason is not None:
            problems.append(Problem(f"'{control}': {reason}; leave it out", key=CONTROLS_KEY))
        elif words is not None:
            arms.append(replace(arm, language_instruction=words))
        elif control in CONTROLLED:
            key, value = CONTROLLED[control]
            ends = dict.fromkeys((f"{key}.sampler_cfg.low", f"{key}.sampler_cfg.high"), value)
            # The job's own words go with the task's.
            own = None if control == "no_instruction" else job.language_instruction
            own_variations = {**job.variations, f"{key}.enabled": True, **ends}
            arms.append(replace(arm, variations=own_variations, language_instruction=own))
    if (wrong := next(filter(None, (name_problem(arm.name) for arm in arms)), None)) is not None:
        problems.append(Problem(f"with a control behind it, {wrong}", key="name"))
    refuse(problems)
    labels = {**job.labels, CONTROLS_KEY: job.name, CONTROL_LABEL: BENIGN}
    recorded = tuple(name for name in asked.names if name in RECORDED_CONTROLS)
    if recorded:
        _LOG.info("job '%s': isaaclab-arena controls RUN plays %s afterwards", job.name, " and ".join(recorded))
    return replace(job, labels=labels, controls=recorded), *arms


def _why_without(control: str, job: Job) -> str | None:
    """Return the reason why a job cannot have a control, None if it can."""
    config, (key, value) = job.config, CONTROLLED.get(control, ("", 0.0))
    varied = [each.key for each in job.variations]
    if control in RECORDED_CONTROLS and config.num_episodes is None:
        return "the job counts steps, and its recording is played by episodes (num_episodes)"
    if control == "open_loop" and config.num_episodes == 1:
        return "the job has one episode, and this plays the actions of another one"
    if key and config.conditions is not None:
        return "it changes the episodes, and 'conditions' says what they start from"
    if control.endswith("_instruction"):
        # Other words take the place of all that vary.
        heard = next((each for each in varied if each == key or (not key and each.startswith("instruction."))), None)
        if heard is not None:
            return f"the job varies {heard} itself"
        says = config.language_instruction or job.builder.task_name(job.environment_config)
        return None if says else f"'{config.environment}' says no words, so this arm would equal the benign one"
    if not key:
        return None

    # The controls of pictures.
    if not config.enable_cameras:
        return "it changes pictures only, and the job has no cameras (enable_cameras)"
    if job.policy_traits.pictures == "none":
        return f"policy '{config.policy_type}' never looks at pictures, so this arm would equal the benign one"
    if key in varied:
        return f"the job varies {key} itself"
    setting = {f"{key}.enabled": True, f"{key}.sampler_cfg.low": value, f"{key}.sampler_cfg.high": value}
    changed = enabled_variations(offered_variations(job.builder, job.environment_config), setting)
    try:
        if (sample := job.builder.sample(job.environment_config)) is not None:
            with closing(sample):
                SensedEnvironment(sample, changed, has_cameras=True)
    except EnvironmentBuildError as error:
        return str(error)
    return None


def _words(job: JobConfig, *, may_import: bool) -> str | None:
    """Return the words of a job's task, None if they are not known before its environment is built."""
    with suppress(ConfigError):
        [resolved] = resolve_jobs([job], may_import=may_import)
        return job.language_instruction or resolved.builder.task_name(resolved.environment_config)
    return None
