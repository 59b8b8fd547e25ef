"""Define the content of a job file as frozen dataclasses, without knowing which environments or policies exist."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from isaaclab_arena.config.latency import LatencyConfig
from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.errors import Problem

TIME_LIMITS = frozenset({"timeout_s", "episode_timeout_s"})
"""Keys of a job that do not say what is to be done, only how long it may take."""

WITHOUT_RESULT = TIME_LIMITS | {"labels", "swept", "suite", "policy_server"}
"""Keys of a job that decide no result: the hash leaves them out, and a run goes on with others."""


class JobStatus(StrEnum):
    """Where a job stands. Only pending jobs are run."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class TrackerName(StrEnum):
    """The services that a running evaluation can be followed in."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


@dataclass(frozen=True, kw_only=True)
class SuiteMember:
    """What a job is in a suite.

    Attributes:
        name: The entry of the job file, after its sweep, that all jobs of the suite come from.
        suite: Registered name of the suite.
        task: The job's task in it.
    """

    name: str
    suite: str
    task: str


class ServerScope(StrEnum):
    """Which ranks share a policy server."""

    NODE = "node"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class PolicyServerConfig:
    """The policy server that the ranks of a job share.

    Attributes:
        shared: Whether there is one on each node, or one for the run.
        max_batch: Env slots that it answers together at most.
        max_wait_ms: How long a query waits for those of other ranks [ms].
        device: Device of its networks, None for a GPU where there is one.
    """

    shared: ServerScope
    max_batch: int = 64
    max_wait_ms: float = 5.0
    device: str | None = None


UNREADABLE = "?"
"""The environment or the policy of a job in which it is wrong, where the file is read ``partly``."""


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job as the file describes it, after defaults, interpolation and sweeps.

    Attributes:
        index: Position among all jobs of the file, from 0; the assignment of jobs to ranks goes by it.
        name: Unique name, one safe path component.
        environment: Registered name of the environment.
        environment_args: Options of the environment: ``arena_env_args`` without the keys below.
        num_envs: Env slots of the environment.
        enable_cameras: Whether the environment renders its cameras.
        placement_seed: Seed of the initial conditions, where it differs from ``seed``.
        policy_type: Registered name or dotted path of the policy.
        policy_config_dict: Options of the policy.
        policy_server: The server that has the policy's network, None where each rank has it.
        latency: How late the answers to the policy's queries are; None where the world waits for them.
        num_steps: Control steps to run, or None; excludes ``num_episodes``.
        num_episodes: Episodes to run over all rebuilds, or None.
        max_episodes: The most episodes that ``--limit`` leaves of a job that does not say itself how many it has.
        num_rebuilds: How many times environment and policy are built for the job.
        language_instruction: What the policy is told instead of the task's own words.
        variations: Overrides of the environment's variations.
        conditions: File of saved conditions that the episodes start from, or None.
        labels: What results may be grouped by, such as ``task`` and ``policy``.
        seed: Seed of the job.
        timeout_s: How long the job may take before it fails [s], or None.
        episode_timeout_s: How long an episode may take before it is an error [s], or None.
        status: Only ``pending`` jobs are run.
        swept: The dotted keys that a sweep gave this job a value for, with that value.
        suite: What the job is in a suite, None for one that is in none.
    """

    index: int
    name: str
    environment: str
    policy_type: str
    environment_args: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    enable_cameras: bool = False
    placement_seed: int | None = None
    policy_config_dict: Mapping[str, Any] = field(default_factory=dict)
    policy_server: PolicyServerConfig | None = None
    latency: LatencyConfig | None = None
    num_steps: int | None = None
    num_episodes: int | None = None
    max_episodes: int | None = None
    num_rebuilds: int = 1
    language_instruction: str | None = None
    variations: Mapping[str, Any] = field(default_factory=dict)
    conditions: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    timeout_s: float | None = None
    episode_timeout_s: float | None = None
    status: JobStatus = JobStatus.PENDING
    swept: Mapping[str, Any] = field(default_factory=dict)
    suite: SuiteMember | None = None


@dataclass(frozen=True, kw_only=True)
class JobsFile:
    """A whole job file.

    Attributes:
        path: Where it was read from.
        jobs: Every job, in order, ``index`` counting from 0.
        config_hash: Hash of the resolved jobs: the same for two files that ask for the same thing.
        questions: What the file asks of its jobs, which stop as soon as it is answered.
        tracking: Where its results are logged while it runs; no part of the hash.
        problems: What is wrong with it, if it was read ``partly``; nothing of such a file may run.
    """

    path: str
    jobs: tuple[JobConfig, ...]
    config_hash: str
    questions: tuple[Question, ...] = ()
    tracking: tuple[TrackerName, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobDefaults:
    """What the command line gives to jobs that do not say it themselves.

    Attributes:
        num_steps: Control steps of a job that gives neither steps nor episodes.
        num_episodes: Episodes of a job that gives neither steps nor episodes; excludes ``num_steps``.
        num_envs: Env slots of a job that does not say.
        seed: Seed of a job that does not say.
        placement_seed: Seed of the initial conditions of a job that does not say.
        enable_cameras: Whether a job that does not say has cameras.
        robustness: What ``robustness`` of a job that does not say is, None for nothing.
    """

    num_steps: int | None = None
    num_episodes: int | None = None
    num_envs: int | None = None
    seed: int | None = None
    placement_seed: int | None = None
    enable_cameras: bool = False
    robustness: Mapping[str, Any] | None = None
