"""The environments and policies of a job, one of each for every group of its env slots."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch

from isaaclab_arena.config.schema import PolicyServerConfig, Question, compared_groups
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching import BatchSizeChoice, ProbeResult, asked_policies, probe_policy, unlike_itself
from isaaclab_arena.evaluation.contents import refuse_changed
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.policy_client import ServedNetwork, ServerAddress
from isaaclab_arena.evaluation.process import Settings, put_back
from isaaclab_arena.evaluation.provenance import modules_of_object, provenance_on
from isaaclab_arena.evaluation.rollout import EnvGroup, group_sizes
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.interfaces.announced import announced_pictures
from isaaclab_arena.interfaces.content import UNKNOWN, LoadsCode
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.arrays import RecordedObservations
from isaaclab_arena.recording.recorder import HandOver, RecordingOptions
from isaaclab_arena.sim.threads import KERNELS, KernelTimes, default_num_threads
from isaaclab_arena.storage.atomic import FileThereError, write_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import SERVED_MODEL_FILE
from isaaclab_arena.storage.ledger import Attempt
from isaaclab_arena.storage.reports import StartUp
from isaaclab_arena.workers.worker_process import spare_workers_kept

# A cache of size one: the objects of the last job, reused if the next job needs equal ones.

_LOG = logging.getLogger(__name__)


Built = TypeVar("Built", bound=Environment | PolicyBase)


class BuildCache(Generic[Built]):
    """Keeps the environments, or the policies, of the last job: one for each group of its env slots."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Built]] = []
        self._lent: list[Built] = []

    def get(
        self, keys: Sequence[str], build: Callable[[Sequence[Built]], Built], *, are_lent: bool = False
    ) -> Sequence[Built]:
        """Return one object per key. Reuse the longest prefix of equal keys, close the rest, and build the others."""
        # `build` gets the objects before it. If `are_lent`, their owner closes them, not this cache.
        num_kept = 0
        while num_kept < min(len(keys), len(self._entries)) and keys[num_kept] == self._entries[num_kept][0]:
            num_kept += 1
        self.clear(keep=num_kept)
        for key in keys[num_kept:]:
            built = build([built for _, built in self._entries])
            self._entries.append((key, built))
            if are_lent:
                self._lent.append(built)
        return [built for _, built in self._entries]

    def clear(self, *, keep: int = 0) -> None:
        """Close all but the first objects. An error is only logged, because the next job did not cause it."""
        while len(self._entries) > keep:
            _, built = self._entries.pop()
            if any(built is each for each in self._lent):
                continue
            try:
                with put_back(f"closing {type(built).__name__}"):
                    built.close()
            except BaseException:  # noqa: BLE001  closing is a user's code too, and must not take the next job down
                _LOG.warning("closing %s failed", type(built).__name__, exc_info=True)


# Keep a policy server's description of its model beside a job's episodes, and compare it later.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The description of a model by its policy server."""

    stated: str  # in the server's own words, `UNKNOWN` if it describes none
    schema_version: int = SCHEMA_VERSION


def settle_served_model(job_directory: Path, job: str, policies: Sequence[PolicyBase]) -> str | None:
    """Return the model that the policies' servers describe, None without servers. `ConfigError` if it has changed."""
    stated = {said for policy in policies if (said := policy.stated_model()) is not None}
    if not stated:
        return None
    if len(stated) > 1:
        raise ConfigError(f"the policy servers of job '{job}' serve different models: {', '.join(sorted(stated))}")
    (now,) = stated
    # The first start of the job writes the file; later starts compare with it.
    path, before = job_directory / SERVED_MODEL_FILE, now
    try:
        write_text(path, json_text(ServedModel(stated=now)))
    except FileThereError:
        before = read_versioned(path, ServedModel, SCHEMA_VERSION).stated
    if before == now:
        return now
    if UNKNOWN in {before, now}:
        _LOG.warning(
            "the policy server of job '%s' stated %s before and states %s now; whether it is the same model cannot be "
            "checked",
            job,
            before,
            now,
        )
        return now
    raise ConfigError(
        f"the policy server serves another model than when the job's episodes ran: it stated {before}, and states "
        f"{now} now; serve that one again, start a new run in another directory, or run the job's episodes anew: "
        f"--resume --rerun {job}"
    )


# Measure the parts of a job's start-up until its first control step.


class StartUpPart(StrEnum):
    """The parts of a start-up in order, besides imports and kernels."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    FIRST_RESET = "first reset"
    FIRST_STEP = "first step"


_DOING = {
    StartUpPart.ENVIRONMENT: "building the environment",
    StartUpPart.POLICY: "loading the policy",
    StartUpPart.FIRST_RESET: "starting its first episodes",
    StartUpPart.FIRST_STEP: "making its first step",
}
"""Message to the user while a part is under way."""


class StartUpClock(Observer):
    """Measures a job's start-up from its own creation on, and logs it after the first control step."""

    # The time of Warp kernels is counted separately, in whichever part they are needed.
    sees_pictures = False

    def __init__(
        self,
        job: str,
        *,
        import_s: float | None,  # time of the process before the first job; see `StartUp`
        # Gets the current part in words, None after the first step.
        tell: Callable[[str | None], None] = lambda _: None,
        now_s: Callable[[], float] = time.perf_counter,
        kernels: Callable[[], KernelTimes] = KERNELS.times,  # time of the process for kernels so far
    ) -> None:
        self._job = job
        self._import_s = import_s
        self._now_s, self._kernels = now_s, kernels
        self._tell = tell
        self._seconds: dict[StartUpPart, float] = {}
        self._spent = KernelTimes()
        self._last = now_s(), kernels()
        tell(_DOING[StartUpPart.ENVIRONMENT])

    def finish(self, part: StartUpPart) -> None:
        """End a part, only at the first call for it. It gets the time since the end of the part before it."""
        if part in self._seconds or StartUpPart.FIRST_STEP in self._seconds:
            return
        now_s, kernels = self._now_s(), self._kernels()
        last_s, last_kernels = self._last
        spent = kernels.since(last_kernels)
        # Threads may load kernels in parallel, so the sum of their times may exceed the elapsed time.
        self._seconds[part] = max(0.0, now_s - last_s - spent.total_s)
        self._spent += spent
        self._last = now_s, kernels
        following = [later for later in list(StartUpPart) if later not in self._seconds]
        self._tell(_DOING[following[0]] if following else None)

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """End the first reset."""
        del environment, starts, observation
        self.finish(StartUpPart.FIRST_RESET)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """End the first step, and log the start-up."""
        del environment, transition
        if StartUpPart.FIRST_STEP not in self._seconds:
            self.finish(StartUpPart.FIRST_STEP)
            start_up = self.start_up()
            total_s = sum(seconds or 0.0 for seconds in vars(start_up).values())
            parts = {
                "imports": start_up.import_s,
                "kernels compiled": start_up.compile_s,
                "kernels waited for": start_up.kernel_wait_s,
                "kernels loaded": start_up.kernel_load_s,
                "environment": start_up.build_environment_s,
                "policy": start_up.build_policy_s,
                "first reset": start_up.first_reset_s,
                "first step": start_up.first_step_s,
            }
            # Leave out negligible parts: "imports 2.1 s, environment 0.8 s".
            shown = {name: seconds for name, seconds in parts.items() if seconds is not None and seconds >= 0.005}
            words = ", ".join(f"{name} {seconds:.{1 if seconds >= 0.1 else 2}f} s" for name, seconds in shown.items())
            level = logging.INFO if total_s >= 1.0 else logging.DEBUG
            _LOG.log(level, "start-up of job '%s': %s", self._job, words)

    def start_up(self) -> StartUp:
        """Return the times measured so far."""
        is_over = StartUpPart.FIRST_STEP in self._seconds
        spent = self._spent if is_over else self._spent + self._kernels().since(self._last[1])
        return StartUp(
            import_s=self._import_s,
            compile_s=spent.compile_s,
            kernel_wait_s=spent.wait_s,
            kernel_load_s=spent.load_s,
            build_environment_s=self._seconds.get(StartUpPart.ENVIRONMENT),
            build_policy_s=self._seconds.get(StartUpPart.POLICY),
            first_reset_s=self._seconds.get(StartUpPart.FIRST_RESET),
            first_step_s=self._seconds.get(StartUpPart.FIRST_STEP),
        )


# The settings that all jobs of one rank share, from the options of its run.


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """The settings that all jobs of one rank share."""

    rank: int
    world_size: int
    device: torch.device  # of the simulation
    num_threads: int  # of the physics
    output_directory: Path
    attempt: int  # number of this start of the program on the run, from 1
    run: str | None = None  # name of the run, None if unknown
    recording: RecordingOptions
    video: VideoOptions = field(default_factory=VideoOptions)
    num_groups: int = 1  # of a job's env slots; while one is simulated the policy acts for another
    eager_pictures: bool = False  # draw every picture, also those that no reader asks for
    policy_batch: int | None = None  # env slots of each policy call, None for the job's num_envs
    # Longest time without a finished control step before the process is ended [s]; 0 for no limit.
    step_timeout_s: float = 0.0
    # Longest time to build a job's environment and policy before the process is ended [s]; 0 for no limit.
    build_timeout_s: float = 0.0
    import_s: float | None = None  # from the start of this process to that of the program [s], None if unknown
    # Facts that identify the run, kept with every recording: versions, configuration hash.
    provenance: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, Contents] = field(default_factory=dict)  # by job, without jobs whose contents are unknown
    # By job: env slots of each policy call, if an earlier start of the program settled them.
    planned_batches: Mapping[str, int] = field(default_factory=dict)
    # By job: num_envs of its finished episodes, if the job has another num_envs now.
    played_with: Mapping[str, int] = field(default_factory=dict)
    policy_servers: Mapping[PolicyServerConfig, ServerAddress] = field(default_factory=dict)  # shared by jobs
    # By compared job: the names of the jobs with which it takes turns, its own included.
    turns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    consolidates: bool = True  # put recorded episodes into datasets; False leaves that to another process
    hand_over: HandOver | None = None  # gives episodes to another process, which commits them; None to commit here


def rank_settings(
    options: RunOptions,
    context: DistributedContext,
    *,
    output_directory: Path,
    attempt: Attempt,
    config_hash: str,
    questions: tuple[Question, ...] = (),
    import_s: float | None = None,
    policy_servers: Mapping[PolicyServerConfig, ServerAddress] | None = None,
) -> RankSettings:
    """Return the settings of a rank from its options, the attempt, the hash of the jobs and the run's questions."""
    recording = RecordingOptions(
        write_dataset=not options.no_dataset,
        observations=RecordedObservations(options.record_observations),
        compression=Compression(options.compression),
    )
    return RankSettings(
        rank=context.rank,
        world_size=context.world_size,
        device=context.device,
        num_threads=options.num_threads or default_num_threads(context.local_world_size),
        output_directory=output_directory,
        recording=recording,
        video=options.video_options(),
        attempt=attempt.number,
        run=attempt.run,
        num_groups=options.pipeline,
        eager_pictures=options.eager_pictures,
        policy_batch=options.fixed_policy_batch(),
        step_timeout_s=options.step_timeout_s,
        build_timeout_s=options.build_timeout_s,
        import_s=import_s,
        provenance={**provenance_on(context.device).facts, "config_hash": config_hash},
        contents={work.job: work.contents for work in attempt.jobs if work.contents is not None},
        planned_batches={work.job: work.policy_batch for work in attempt.jobs if work.policy_batch is not None},
        played_with={work.job: work.num_envs for work in attempt.jobs if work.num_envs is not None},
        policy_servers=policy_servers or {},
        turns={name: tuple(sorted(group)) for group in compared_groups(questions) for name in group},
    )


# Build the environments and policies of a job, one of each for every group of its env slots.


@dataclass(frozen=True, kw_only=True)
class BuiltGroups:
    """The groups of a job's env slots."""

    groups: Sequence[EnvGroup]
    policy_batch: int | None  # rows of each policy call, None if it makes no difference
    # Reason why episodes are not determined to the last bit; None if they are.
    plan_because: str | None
    served_model: str | None = None  # as the policy's server describes it, None without a server
    network: ServedNetwork | None = None  # in the run's policy server, None for a network in this process


class GroupBuilder:
    """Builds environments and policies job by job, and reuses them for the next job with equal keys."""

    def __init__(self, settings: RankSettings) -> None:
        self._settings = settings
        self.set_by_code = Settings()  # process-wide settings that foreign code changes
        self._taking_turns: tuple[str, ...] = ()
        self._environments: defaultdict[str, BuildCache[Environment]] = defaultdict(BuildCache)
        self._policies: defaultdict[str, BuildCache[PolicyBase]] = defaultdict(BuildCache)
        self._probed: dict[tuple[str, str, int, bool], ProbeResult] = {}
        self._probed_environments: dict[tuple[str, bool], str | None] = {}
        self._networks: dict[tuple[str, PolicyServerConfig], ServedNetwork] = {}
        self._has_built = False
        self._has_new_environment = self._has_new_policy = False

    def build(self, job: Job, directory: Path, start_up: StartUpClock) -> BuiltGroups:
        """Return the groups of a job's env slots. The job's directory stores the batch size of its policy."""
        settings, config = self._settings, job.config
        taking_turns = settings.turns.get(config.name, ())
        # The first build imports modules, which stay, so no garbage is collected. A later one may need the freed
        # memory.
        with nullcontext() if self._has_built else without_collecting():
            self._has_built = True
            # Jobs that take turns keep each other's objects.
            if taking_turns != self._taking_turns:
                self.clear()
                self._taking_turns = taking_turns
            self._has_new_environment = self._has_new_policy = False
            sizes = group_sizes(config.num_envs, min(settings.num_groups, config.num_envs))
            jobs = [job.with_num_envs(size, policy_num_envs=size) for size in sizes]

            def new_environment(others: Sequence[Environment]) -> Environment:
                self._has_new_environment = True
                own = jobs[len(others)]
                return own.build_environment(device=settings.device, num_threads=settings.num_threads)

            # Worker processes of the previous environment may serve this one.
            with spare_workers_kept(), self.set_by_code.of(f"environment '{config.environment}'", job.environment_key):
                environments = self._environments[job.environment_key if taking_turns else ""].get(
                    [each.environment_key for each in jobs], new_environment
                )
            start_up.finish(StartUpPart.ENVIRONMENT)

            choice = BatchSizeChoice(
                directory=directory,
                traits=job.policy_traits,
                environments=environments,
                fixed_batch=settings.policy_batch,
                planned=settings.planned_batches.get(config.name),
                make=partial(self._make_policies, job, environments, []),
                probe=partial(self._probe, job, environments[0]),
                probe_environment=partial(self._probe_environment, job, environments[0]),
            )
            with self.set_by_code.of(f"policy '{config.policy_type}'", job.policy_key):
                asked = asked_policies(choice, simulated_on=settings.device.type)
            start_up.finish(StartUpPart.POLICY)

            # A file may have changed since the run began. Only what was built for this job has read it again.
            begun = settings.contents.get(config.name)
            if begun is not None and (self._has_new_environment or self._has_new_policy):
                refuse_changed(job, begun, environment=self._has_new_environment, policy=self._has_new_policy)
            groups = [
                EnvGroup(environment=environment, policy=policy)
                for environment, policy in zip(environments, asked.policies, strict=True)
            ]
            for group in groups:
                if type(group.environment).load_renderer is Environment.load_renderer:
                    continue
                # The kernels of the renderer may take long to compile, so load it now if the policy uses pictures.
                looked_at = announced_pictures(group.policy, group.environment, range(group.environment.num_envs))
                if looked_at is None or len(looked_at):
                    group.environment.load_renderer()
            return BuiltGroups(
                groups=groups,
                policy_batch=asked.batch,
                plan_because=asked.plan_because,
                served_model=settle_served_model(directory, config.name, asked.policies),
                network=self._network_of(job),
            )

    def clear(self) -> None:
        """Close everything that was built."""
        for cache in (*self._policies.values(), *self._environments.values()):
            cache.clear()
        self._policies.clear()
        self._environments.clear()

    def _make_policies(
        self, job: Job, environments: Sequence[Environment], begun: list[PolicyBase], policy_batch: int | None
    ) -> Sequence[PolicyBase]:
        """Return each group's policy; see `BatchSizeChoice.make`. Policies in ``begun`` have seen their environment."""
        sizes = [environment.num_envs for environment in environments]
        # A batch-invariant policy needs no fixed batch.
        fixed = None if job.policy_traits.batch_invariant else policy_batch
        jobs = [job.with_num_envs(size, policy_num_envs=fixed or size) for size in sizes]

        def new_policy(others: Sequence[PolicyBase]) -> PolicyBase:
            # It shares the network of the first group's policy if it can, or one in a policy server.
            self._has_new_policy = True
            first, own = others[0] if others else None, jobs[len(others)]
            sharing = None if first is None else first.with_own_memory()
            if sharing is not None:
                return sharing
            return own.build_policy(self._network_of(own))

        policies = self._policies[job.config.name if self._taking_turns else ""].get(
            [each.policy_key for each in jobs],
            new_policy,
            are_lent=job.lent is not None,
        )
        for policy, environment in zip(policies, environments, strict=True):
            if not any(policy is each for each in begun):
                policy.reset()
                policy.check_environment(environment)
                if not begun:
                    job.tell_connections(policy, environment)
                begun.append(policy)
        return policies

    def _network_of(self, job: Job) -> ServedNetwork | None:
        """Return the served network of a job, None without a server. All groups and later jobs share one connection."""
        server = job.config.policy_server
        if server is None:
            return None
        key = job.network_key, server
        if key not in self._networks:
            self._networks[key] = ServedNetwork(self._settings.policy_servers[server], job.network_key)
        return self._networks[key]

    def _probe(self, job: Job, environment: Environment, policy: PolicyBase, batch: int) -> ProbeResult:
        """Probe the first group's policy (see `BatchSizeChoice.probe`), once for equal keys."""
        continues = job.latency is not None and job.latency.continues
        key = (job.policy_key, job.environment_key, batch, continues)
        if key not in self._probed:
            self._probed[key] = probe_policy(policy, environment, batch=batch, continues=continues)
        return self._probed[key]

    def _probe_environment(self, job: Job, environment: Environment) -> str | None:
        """Probe the first group's environment (see `BatchSizeChoice.probe_environment`), once for equal keys."""
        # Environments of this package's own code are not probed, because its tests cover them.
        if not isinstance(job.builder, LoadsCode) and not modules_of_object(job.builder.own):
            return None
        key = job.environment_key, job.policy_traits.pictures != "none"
        if key not in self._probed_environments:
            with self.set_by_code.of(f"environment '{job.config.environment}'", job.environment_key):
                self._probed_environments[key] = unlike_itself(environment, sees_pictures=key[1])
        return self._probed_environments[key]
