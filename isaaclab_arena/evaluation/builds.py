"""The environments and policies of a job, one of each for every group of its env slots."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.config.schema import Meanwhile, PolicyServerConfig
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation import batching
from isaaclab_arena.evaluation.job import ContentReader, Job, modules_of_object
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.policy_client import ServedNetwork, ServerAddress
from isaaclab_arena.evaluation.process import Settings, put_back
from isaaclab_arena.evaluation.rollout import EnvGroup, group_sizes
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import announced_pictures
from isaaclab_arena.logs import KERNELS, KernelTimes
from isaaclab_arena.recording.recorder import RemoteCommit
from isaaclab_arena.storage.atomic import FileThereError, json_text, read_versioned, write_text
from isaaclab_arena.storage.contents import changes
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, SERVED_MODEL_FILE, SETTLED_FILE
from isaaclab_arena.storage.ledger import Attempt, StartUp, read_settled, settle
from isaaclab_arena.workers import spare_workers_kept

# The objects of the last job, reused if the next job needs equal ones.

_LOG = logging.getLogger(__name__)


Built = TypeVar("Built", bound=Environment | PolicyBase)
Kept: TypeAlias = list[tuple[str, Built, bool]]
"""The environments or the policies of the last job: key and object of each group of its env slots. An object that is
lent (True) is closed by its owner."""


def reuse(kept: Kept[Built], keys: Sequence[str] = ()) -> list[Built]:
    """Return the objects of the longest prefix of equal keys. Close and drop the rest, without `keys` all of them."""
    num_kept = 0
    while num_kept < min(len(keys), len(kept)) and keys[num_kept] == kept[num_kept][0]:
        num_kept += 1
    while len(kept) > num_kept:
        _, built, is_lent = kept.pop()
        if is_lent:
            continue
        try:
            with put_back(f"closing {type(built).__name__}"):
                built.close()
        # The error is only logged: the next job did not cause it, and must not fail by it.
        except BaseException:  # noqa: BLE001  closing is a user's code too
            _LOG.warning("closing %s failed", type(built).__name__, exc_info=True)
    return [built for _, built, _ in kept]


# Keep a policy server's description of its model beside a job's episodes, and compare it later.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The description of a model by its policy server."""

    stated: str  # in the server's own words, `UNKNOWN` if it describes none
    schema_version: int = SCHEMA_VERSION


def settle_served_model(job_directory: Path, job_name: str, policies: Sequence[PolicyBase]) -> str | None:
    """Return the model that the policies' servers describe, None without servers. `ConfigError` if it has changed."""
    stated = {model for policy in policies if (model := policy.stated_model()) is not None}
    if not stated:
        return None
    if len(stated) > 1:
        raise ConfigError(f"the policy servers of job '{job_name}' serve different models: {', '.join(sorted(stated))}")
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
            "the policy server of job '%s' described its model as %s before, and as %s now; it may be another model",
            job_name,
            before,
            now,
        )
        return now
    raise ConfigError(
        f"the policy server's model has changed since this job's episodes ran: it was {before}, and is {now} now; "
        f"serve the earlier one, start a new run, or run the job's episodes again: --resume --rerun {job_name}"
    )


# Measure the parts of a job's start-up until its first control step.


class StartUpPart(StrEnum):
    """The parts of a start-up in order, besides imports and kernels, in words for the user."""

    ENVIRONMENT = "building the environment"
    POLICY = "loading the policy"
    FIRST_RESET = "starting its first episodes"
    FIRST_STEP = "making its first step"


@dataclass(eq=False)
class StartUpClock(Observer):
    """Measures a job's start-up from its own creation on, and logs it after the first control step; counts steps."""

    # The time of Warp kernels is counted separately, in whichever part they are needed.
    sees_pictures = False
    job_name: str
    _: KW_ONLY
    import_s: float | None  # time of the process before the first job; see `StartUp`
    on_part: Callable[[str | None], None] = lambda _: None  # gets the current part in words, None after the first step
    now_s: Callable[[], float] = time.perf_counter
    kernels: Callable[[], KernelTimes] = lambda: KERNELS.times  # time of the process for kernels so far
    env_steps: int = field(default=0, init=False)  # over running env slots, also of a rollout that raises
    _seconds: dict[StartUpPart, float] = field(default_factory=dict, init=False)
    _spent: KernelTimes = field(default_factory=KernelTimes, init=False)

    def __post_init__(self) -> None:
        self._last = self.now_s(), self.kernels()
        self.on_part(StartUpPart.ENVIRONMENT.value)

    def finish(self, part: StartUpPart) -> None:
        """End a part, only at the first call for it. It gets the time since the end of the part before it."""
        if part in self._seconds or StartUpPart.FIRST_STEP in self._seconds:
            return
        now_s, kernels = self.now_s(), self.kernels()
        last_s, last_kernels = self._last
        spent = kernels.since(last_kernels)
        # Threads may load kernels in parallel, so the sum of their times may exceed the elapsed time.
        self._seconds[part] = max(0.0, now_s - last_s - spent.total_s)
        self._spent += spent
        self._last = now_s, kernels
        self.on_part(next((later.value for later in StartUpPart if later not in self._seconds), None))

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """End the first reset."""
        del environment, starts, observation
        self.finish(StartUpPart.FIRST_RESET)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count a step. After the first one, log the start-up."""
        del environment
        self.env_steps += transition.num_running
        if StartUpPart.FIRST_STEP in self._seconds:
            return
        self.finish(StartUpPart.FIRST_STEP)
        kernels = ("kernels compiled", "kernels waited for", "kernels loaded")
        names = ("imports", *kernels, "environment", "policy", "first reset", "first step")
        parts = {name: seconds or 0.0 for name, seconds in zip(names, vars(self.start_up()).values(), strict=True)}
        # Leave out negligible parts: "imports 2.1 s, environment 0.8 s".
        shown = {name: seconds for name, seconds in parts.items() if seconds >= 0.005}
        words = ", ".join(f"{name} {seconds:.{1 if seconds >= 0.1 else 2}f} s" for name, seconds in shown.items())
        level = logging.INFO if sum(parts.values()) >= 1.0 else logging.DEBUG
        _LOG.log(level, "start-up of job '%s': %s", self.job_name, words)

    def start_up(self) -> StartUp:
        """Return the times measured so far."""
        is_over = StartUpPart.FIRST_STEP in self._seconds
        spent = self._spent if is_over else self._spent + self.kernels().since(self._last[1])
        return StartUp(
            import_s=self.import_s,
            compile_s=spent.compile_s,
            kernel_wait_s=spent.wait_s,
            kernel_load_s=spent.load_s,
            build_environment_s=self._seconds.get(StartUpPart.ENVIRONMENT),
            build_policy_s=self._seconds.get(StartUpPart.POLICY),
            first_reset_s=self._seconds.get(StartUpPart.FIRST_RESET),
            first_step_s=self._seconds.get(StartUpPart.FIRST_STEP),
        )


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """The settings that all jobs of one rank share."""

    context: DistributedContext  # the rank, and the device of its simulation
    options: RunOptions
    output_directory: Path
    attempt: Attempt  # this start of the program on the run
    num_threads: int  # of the physics
    import_s: float | None = None  # from the start of this process to that of the program [s], None if unknown
    # Facts that identify the run, kept with every recording: versions, configuration hash.
    provenance: Mapping[str, str] = field(default_factory=dict)
    policy_servers: Mapping[PolicyServerConfig, ServerAddress] = field(default_factory=dict)  # shared by jobs
    # By compared job: the names of the jobs with which it is interleaved, its own included.
    interleaved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Gives episodes to another process, which commits them and makes the datasets; None to do so here.
    remote_commit: RemoteCommit | None = None


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


@dataclass(eq=False)
class GroupBuilder:
    """Builds environments and policies job by job, and reuses them for the next job with equal keys."""

    settings: RankSettings
    set_by_code: Settings = field(default_factory=Settings, init=False)  # process-wide, changed by foreign code
    _interleaved: tuple[str, ...] = field(default=(), init=False)
    # By "environment" or "policy"; for interleaved jobs with the key of either, so that the tasks of a suite share one.
    _kept: defaultdict[tuple[str, str], Kept[Any]] = field(default_factory=partial(defaultdict, list), init=False)
    _probed: dict[tuple[str, str, int, bool], batching.ProbeResult] = field(default_factory=dict, init=False)
    _probed_environments: dict[tuple[str, bool], str | None] = field(default_factory=dict, init=False)
    # One connection for all groups and later jobs.
    _networks: dict[tuple[str, PolicyServerConfig | None], ServedNetwork] = field(default_factory=dict, init=False)
    _has_built: bool = field(default=False, init=False)
    _has_new_policy: bool = field(default=False, init=False)

    def build(self, job: Job, directory: Path, clock: StartUpClock) -> BuiltGroups:
        """Return the groups of a job's env slots. The job's directory stores the batch size of its policy."""
        settings, config = self.settings, job.config
        interleaved = settings.interleaved.get(config.name, ())
        # The first build imports modules, which stay, so no garbage is collected. A later one may need the freed
        # memory.
        with nullcontext() if self._has_built else without_collecting():
            self._has_built = True
            # Interleaved jobs keep each other's objects.
            if interleaved != self._interleaved:
                self.clear()
                self._interleaved = interleaved
            self._has_new_policy = False
            sizes = group_sizes(config.num_envs, min(settings.options.pipeline, config.num_envs))
            jobs = [job.with_num_envs(size, policy_num_envs=size) for size in sizes]

            # Worker processes of the previous environment may serve this one.
            with spare_workers_kept(), self.set_by_code.of(f"environment '{config.environment}'", job.environment_key):
                kept = self._kept["environment", job.environment_key if interleaved else ""]
                environments = reuse(kept, [each.environment_key for each in jobs])
                has_new_environment = len(environments) < len(jobs)
                for own in jobs[len(environments) :]:
                    built = own.build_environment(device=settings.context.device, num_threads=settings.num_threads)
                    kept.append((own.environment_key, built, False))
                    environments.append(built)
            clock.finish(StartUpPart.ENVIRONMENT)
            with self.set_by_code.of(f"policy '{config.policy_type}'", job.policy_key):
                policies, policy_batch, plan_because = self._asked_policies(job, directory, environments)
            clock.finish(StartUpPart.POLICY)

            # A file may have changed since the run began. Only objects that were built for this job have read it again.
            planned = settings.attempt.state(config.name).contents
            if planned is not None and (has_new_environment or self._has_new_policy):
                read = ContentReader().read(job)
                changed = [*(changes(planned.environment, read.environment) if has_new_environment else ())]
                changed += changes(planned.policy, read.policy) if self._has_new_policy else ()
                why = "it changed during the run; restore it, or run the job again: --resume --rerun "
                refuse([Problem(f"{how}; {why}{config.name}", job=config.name, key=key) for key, how in changed])
            for environment, policy in zip(environments, policies, strict=True):
                if type(environment).load_renderer is Environment.load_renderer:
                    continue
                # The kernels of the renderer may take long to compile, so load it now if the policy uses pictures.
                looked_at = announced_pictures(policy, environment, range(environment.num_envs))
                if looked_at is None or len(looked_at):
                    environment.load_renderer()
            return BuiltGroups(
                groups=[EnvGroup(environment=one, policy=two) for one, two in zip(environments, policies, strict=True)],
                policy_batch=policy_batch,
                plan_because=plan_because,
                served_model=settle_served_model(directory, config.name, policies),
                network=self._networks.get((job.network_key, config.policy_server)),
            )

    def clear(self) -> None:
        """Close everything that was built."""
        # Policies first.
        for key in sorted(self._kept, reverse=True):
            reuse(self._kept.pop(key))

    def _asked_policies(
        self, job: Job, directory: Path, environments: Sequence[Environment]
    ) -> tuple[Sequence[PolicyBase], int | None, str | None]:
        """Return each group's policy, the rows of a call, and the reason if the same bits cannot be promised."""
        # A network's last digits change with the batch size, so the size belongs to the job. On some processors they
        # also change with the place in a batch whose size is no multiple of 4. So the batch is padded, and a probe
        # tests whether places still matter. Results are `bitwise` only if they do not.
        fixed, traits = self.settings.options.fixed_policy_batch(), job.policy_traits
        device = self.settings.context.device.type
        num_envs = fixed or max(environment.num_envs for environment in environments)
        make = partial(self._make_policies, job, environments, [])

        # The environment is checked first: if it rules out the same bits, the policies are not probed.
        because = None
        if device != "cpu":
            because = f"simulated on {device}, which may add numbers in another order each time"
        elif not all(environment.reproducible for environment in environments):
            because = "the environment does not declare itself reproducible"

        # A likely candidate size is built at once, so that a policy is not built twice.
        is_likely = because is None and traits.reproducible and not traits.batch_invariant
        policies = make(self._batch_sizes(job, directory, num_envs)[1][0] if is_likely else fixed)

        is_invariant = policies[0].traits.batch_invariant
        doubtful = next((policy for policy in policies if not policy.traits.reproducible), None)
        if because is None and any(policy.is_remote for policy in policies):
            because = "the policy's network runs in another process, which may answer several clients in one "
            because += "call"
        elif because is None and doubtful is not None:
            because = doubtful.traits.plan_because
            because = because or "set traits = PolicyTraits(reproducible=True) if your policy is deterministic"
        # A foreign environment is probed, once for equal keys. This package's tests cover its own environments.
        if because is None and (job.builder.loads_code or modules_of_object(job.builder.own)):
            key = job.environment_key, job.policy_traits.pictures != "none"
            if key not in self._probed_environments:
                with self.set_by_code.of(f"environment '{job.config.environment}'", job.environment_key):
                    self._probed_environments[key] = batching.unlike_itself(environments[0], sees_pictures=key[1])
            because = self._probed_environments[key]

        # A policy that divides a batch into calls, of `own` env slots, pads each call instead of the batch. Without a
        # settled size the policies are as they are, without padding.
        own = policies[0].slots_per_call(num_envs) if "slots_per_call" in policies[0].offers else None
        rows = own or num_envs

        def policies_for(batch: int | None) -> Sequence[PolicyBase]:
            policies = make(fixed if batch is None or own is not None else batch)
            # An earlier job, or a probe that failed, may have filled calls up.
            for each in policies if batch is None or own is not None else ():
                if "slots_per_call" in each.offers:
                    each.fill_calls_up_to(batch)
            return policies

        batch = None
        if because is None and not is_invariant:
            batch, because = self._settled_batch(job, directory, environments[0], rows, policies_for)
        policies = policies_for(batch)
        wide = fixed if batch is None or own is not None else batch
        if batch is None and not (is_invariant or policies[0].is_remote):
            batch = rows
        return [batching.on_fixed_batch(policy, wide) for policy in policies], batch, because

    def _settled_batch(
        self,
        job: Job,
        directory: Path,
        environment: Environment,
        num_envs: int,
        policies_for: Callable[[int], Sequence[PolicyBase]],  # each group's policy for a batch size
    ) -> tuple[int | None, str | None]:
        """Return the settled batch size, None if it cannot be probed, and the reason if the bits are not promised."""
        # In real-time chunking new chunks continue planned actions, unless no answer is late.
        latency = job.config.latency
        is_chunking = latency is not None and latency.meanwhile is Meanwhile.RTC
        continues = is_chunking and (job.delays is None or job.delays.longest > 0)

        def probe(batch: int) -> batching.ProbeResult:
            # Once for equal keys.
            policy, key = policies_for(batch)[0], (job.policy_key, job.environment_key, batch, continues)
            if key not in self._probed:
                self._probed[key] = batching.probe_policy(policy, environment, batch=batch, continues=continues)
            return self._probed[key]

        # The size is the stored one, or the first at which places in the batch make no difference.
        earlier, sizes = self._batch_sizes(job, directory, num_envs)
        batch, result = sizes[0], batching.ProbeResult(passes=False)
        for batch in sizes:
            result = probe(batch)
            if result.passes or result.error is not None:
                break
        if result.error is not None:
            return None, (
                f"the policy fails on generated observations ({result.error}), so its env slots may influence each "
                "other; if they do not, to the last bit, set traits = PolicyTraits(batch_invariant=True) in its class"
            )

        # If no batch size passes, use the smallest padding. An earlier start or another rank may have stored another.
        chosen, problem = batch if result.passes else sizes[0], None
        counts = self.settings.attempt.state(job.config.name).policy_batch
        try:
            counts = counts or settle(directory, chosen)
            if counts < num_envs:
                problem = f"earlier batches of the policy had {counts} env slots, and now there are {num_envs}"
        except ConfigError as error:
            _LOG.warning("%s", error)
            problem = f"{SETTLED_FILE}, which holds the policy's batch size, cannot be read"
        counts = counts if counts is not None and problem is None else chosen
        if counts != batch:
            sizes = sizes if counts in sizes else (counts,)
            result = probe(counts)
        if counts > num_envs:
            name = type(policies_for(counts)[0]).__name__
            _LOG.info("batches of %s are padded from %d to %d env slots for bitwise results", name, num_envs, counts)

        if problem is None and counts > 1 and counts % batching.MULTIPLES[0]:
            problem = (
                f"an earlier start used batches of {counts} env slots, and in sizes that are no multiple of "
                f"{batching.MULTIPLES[0]} an env slot's place may change its actions; a new run pads its batches"
            )
        elif problem is None and not result.passes:
            *most, last = map(str, sizes)
            rows = f"{', '.join(most)} and of {last} rows" if most else f"{last} rows"
            problem = (
                "on this machine an env slot's actions depend on its place or its neighbours in a batch of "
                f"{rows}{', the size since the job began' if counts == earlier else ''}; with num_envs 1 "
                "they do not"
            )
        return counts, problem

    def _batch_sizes(self, job: Job, directory: Path, num_envs: int) -> tuple[int | None, tuple[int, ...]]:
        """Return the batch size that was chosen earlier, None if there is none, and the sizes to try."""
        earlier = self.settings.attempt.state(job.config.name).policy_batch
        if earlier is None:
            # `_settled_batch` reports a damaged file.
            with suppress(ConfigError):
                earlier = read_settled(directory)
        if earlier is not None and earlier >= num_envs:
            return earlier, (earlier,)
        # Committed episodes without a stored size were played without padding: one call for all env slots.
        has_commits = any(directory.glob(COMMIT_FILE_PATTERN))
        return earlier, (num_envs,) if has_commits else batching.filled_up(num_envs)

    def _make_policies(
        self, job: Job, environments: Sequence[Environment], checked: list[PolicyBase], policy_batch: int | None
    ) -> Sequence[PolicyBase]:
        """Build or reuse each group's policy for a batch size, None for the group's number of env slots."""
        # Policies in `checked` have seen their environment. A batch-invariant policy needs no fixed batch.
        fixed = None if job.policy_traits.batch_invariant else policy_batch
        jobs = [job.with_num_envs(each.num_envs, policy_num_envs=fixed or each.num_envs) for each in environments]
        kept = self._kept["policy", job.policy_key if self._interleaved else ""]
        policies, server = reuse(kept, [each.policy_key for each in jobs]), job.config.policy_server
        for own in jobs[len(policies) :]:
            # It shares the network of the first group's policy if it can, or one in a policy server.
            self._has_new_policy = True
            sharing = policies[0].with_own_memory() if policies else None
            key = own.network_key, server
            if sharing is None and server is not None and key not in self._networks:
                self._networks[key] = ServedNetwork(self.settings.policy_servers[server], own.network_key)
            built = own.build_policy(self._networks.get(key)) if sharing is None else sharing
            kept.append((own.policy_key, built, job.lent is not None))
            policies.append(built)
        for policy, environment in zip(policies, environments, strict=True):
            if not any(policy is each for each in checked):
                policy.reset()
                policy.check_environment(environment)
                if not checked:
                    job.tell_connections(policy, environment)
                checked.append(policy)
        return policies
