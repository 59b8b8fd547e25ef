"""The content of a job file as frozen dataclasses, and how its keys are read: jobs, latency, and when to stop."""

import fnmatch
import math
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from isaaclab_arena.config.options import StrictModel, error_message, problems_of, read_options, shown
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, nearest_names, problems_into, refuse

MAX_COUNT = 10_000_000
MAX_ENVS = 1_000_000
MAX_SEED = 2**63 - 1
MAX_WAIT_MS = 60_000

JobCount: TypeAlias = Annotated[int, Field(ge=1, le=MAX_COUNT)]
EnvSlots: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ENVS)]
Seed: TypeAlias = Annotated[int, Field(ge=0, le=MAX_SEED)]

MAX_NAME_CHARACTERS = 80
MAX_NAME_BYTES = 200
_TABLES = ("results", "suites", "episodes", "timing", "episode_timing")
RESERVED_NAMES = frozenset(
    {"logs", "attempts", "claims", "launcher", "run.json", "report.html", "results.json", "verification.json"}
    | {f"{table}.{kind}" for table in _TABLES for kind in ("csv", "parquet")}
)
"""Names in an output directory beside the directories of its jobs."""

# Scripts and emoji need these invisible characters: two joiners, and the variation selectors.
_NEEDED = frozenset("\u200c\u200d") | frozenset(map(chr, range(0xFE00, 0xFE10)))
# Rendered as nothing or as a blank, though Unicode counts them as letters, marks or symbols.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_PAIRS = (
    "\u0410A \u0412B \u0415E \u041aK \u041cM \u041dH \u041eO \u0420P \u0421C \u0422T \u0425X \u0423Y \u0406I \u0405S"
    " \u0408J "
    "\u0430a \u0435e \u043eo \u0440p \u0441c \u0445x \u0443y \u0456i \u0455s \u0458j \u04bbh \u0501d \u043ak "
    "\u0391A \u0392B \u0395E \u0396Z \u0397H \u0399I \u039aK \u039cM \u039dN \u039fO \u03a1P \u03a4T \u03a5Y \u03a7X "
    "\u03b1a \u03b9i \u03bak \u03bdv \u03bfo \u03c1p \u03c5u \u03c7x "
)
_LOOKS_LATIN = {ord(pair[0]): pair[1] for pair in _PAIRS.split()}
"""Letters of Cyrillic and Greek that look like Latin ones."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def name_problem(name: str) -> str | None:
    """Return the reason why a job's name is not one safe path component, None if it is."""
    shown = ascii(name if len(name) <= 40 else name[:37] + "...")
    num_bytes = len(name.encode("utf-8", errors="surrogatepass"))
    checks = (
        (not name, "is empty"),
        (name in {".", ".."}, f"{shown} stands for a directory"),
        ("/" in name or "\\" in name, f"{shown} holds a slash; a name is one path component"),
        (any(unicodedata.category(character) == "Cc" for character in name), f"{shown} holds a control character"),
        (any(unicodedata.category(character) in {"Zl", "Zp"} for character in name), f"{shown} holds a line break"),
        (any(character in _BIDIRECTIONAL for character in name), f"{shown} holds a character that turns text around"),
        (
            any(each in _BLANK or (unicodedata.category(each) == "Cf" and each not in _NEEDED) for each in name),
            f"{shown} holds an invisible character",
        ),
        (any("\ud800" <= character <= "\udfff" for character in name), f"{shown} holds half a character (a surrogate)"),
        (name[:1] in {"-", "."}, f"{shown} begins with '{name[:1]}'"),
        (name != name.strip(), f"{shown} begins or ends with a space"),
        (len(name) > MAX_NAME_CHARACTERS, f"has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are allowed"),
        (num_bytes > MAX_NAME_BYTES, f"has {num_bytes} bytes; at most {MAX_NAME_BYTES} are allowed"),
        (folded(name) in RESERVED_NAMES, f"{shown} is the name of a file that every run writes"),
    )
    return next((message for wrong, message in checks if wrong), None)


def folded(name: str) -> str:
    """Return a key that is equal for names that a file system may not distinguish (case, composition)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def clashes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name that clashes with an earlier one, on disk or to the eye, with that name, in order."""
    taken: dict[str, str] = {}
    exact: set[str] = set()
    hidden = _NEEDED | _BLANK
    found = []
    for name in names:
        # Names look alike if they are equal without invisible characters, and with look-alikes unified.
        seen = "".join(each for each in name if each not in hidden and unicodedata.category(each) != "Cf")
        earlier = taken.setdefault(folded(unicodedata.normalize("NFKC", seen).translate(_LOOKS_LATIN)), name)
        if name in exact:
            found.append((name, name))
        elif earlier != name:
            found.append((name, earlier))
        exact.add(name)
    return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """A comparison of jobs or suites, or a bar for one. Jobs stop once all their questions are answered."""

    name: str  # unique among the questions of a file
    # The new job and the old one to compare it with, or the one job that must reach the bar, or those of which the best
    # is selected. For suites all tasks of the first one, then all of the next one in the same order.
    jobs: tuple[str, ...]
    max_episodes: int  # episodes of each job that it considers, at most
    # The probability of a wrong answer, if it is the only question of the file.
    alpha: float = 0.05
    # The decrease of the success rate that the new job may have, 0 to 1; None asks which job is better.
    margin: float | None = None
    at_least: float | None = None  # the success rate that the job must reach, 0 to 1; None in a comparison
    half_width: float | None = None  # half of the widest interval that is narrow enough; None if something else decides
    selects_best: bool = False  # whether jobs are left out until one is known to be the best
    arms: tuple[str, ...] = ()  # names of the suites; empty if each job stands for itself
    # Whether each task of a suite has an environment or an object of its own, so that equal conditions are no equal
    # draws of two tasks; see `condition_key`.
    are_apart: bool = False

    @property
    def sides(self) -> dict[str, tuple[str, ...]]:
        """The jobs of each side by its name: a single one, or those of a suite."""
        names = self.arms or self.jobs
        size = len(self.jobs) // max(1, len(names))
        return {name: self.jobs[size * at : size * (at + 1)] for at, name in enumerate(names)}

    @property
    def is_test(self) -> bool:
        """Whether a single amount of evidence decides it."""
        return self.half_width is None and not self.selects_best


def compared_groups(questions: tuple[Question, ...]) -> tuple[frozenset[str], ...]:
    """Return the sets of jobs that comparisons connect, in order of each set's first comparison."""
    groups: list[frozenset[str]] = []
    # A bar has one job and connects nothing. A comparison merges all groups that it touches.
    for question in questions:
        if len(question.jobs) > 1:
            joined = frozenset(question.jobs)
            apart = []
            for group in groups:
                if group & joined:
                    joined |= group
                else:
                    apart.append(group)
            groups = [*apart, joined]
    names = [name for question in questions for name in question.jobs]
    return tuple(sorted(groups, key=lambda group: min(map(names.index, group))))


# The key ``latency`` of a job: the delay of answers to a policy's queries, and the robot's behaviour until then.

MAX_STEPS = 10_000
MAX_MS = 600_000.0
MEASURED = "measured"
"""The value of ``latency`` that has this machine's own latency measured when the run starts."""

_SOURCES = ("steps", "ms", "file", MEASURED)


class Meanwhile(StrEnum):
    """The robot's behaviour between a query and its answer."""

    WAIT = "wait"  # the world stands still
    HOLD = "hold"  # the robot holds still
    CHUNK = "chunk"  # it plays the chunk it has; actions of the next chunk that are late are dropped
    # As with chunk, and the next chunk continues from the actions played meanwhile (real-time chunking).
    RTC = "rtc"


@dataclass(frozen=True, kw_only=True)
class LatencyConfig:
    """The delay of the answers to a policy's queries: exactly one of the four sources is given."""

    meanwhile: Meanwhile = Meanwhile.HOLD
    steps: tuple[int, int] | None = None  # least and most control steps, each number of them as likely
    ms: tuple[float, float] | None = None  # least and most time, uniform [ms]
    file: str | None = None  # file of measured latencies, one of which is drawn for each query
    measured: bool = False  # True to measure them when the run starts


@dataclass(frozen=True, kw_only=True)
class Delays:
    """The delay of answers in control steps, once the job's control steps have a length."""

    # Numbers of control steps, ascending, each with its weight: its measured frequency, or 1.
    steps: tuple[tuple[int, int], ...]
    control_dt: float | None = None  # time between two control steps [s]; None if the job gives steps

    @property
    def longest(self) -> int:
        """The largest number of control steps."""
        return self.steps[-1][0]

    def draw(self, generator: np.random.Generator) -> int:
        """Draw the delay of one answer [control steps] from the episode's own random stream."""
        place = int(generator.integers(sum(weight for _, weight in self.steps)))
        for number, weight in self.steps:
            place -= weight
            if place < 0:
                return number
        return self.longest

    def __str__(self) -> str:
        numbers = [number for number, _ in self.steps]
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        dt = "" if self.control_dt is None else f" of {1000 * self.control_dt:g} ms"
        return f"{span} control step{'' if numbers[-1] == 1 else 's'}{dt}"


def read_latency(value: Any) -> LatencyConfig | None:
    """Return the latency of a job, None if it gives none; ConfigError with the key within ``latency``."""
    if value is None:
        return None
    if value == MEASURED:
        value = {MEASURED: True}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(value)} is no mapping such as {{steps: 2}}, and not '{MEASURED}'")
    known = (*_SOURCES, "meanwhile")
    for key in value:
        if key not in known:
            raise ConfigError(f"unknown key{did_you_mean(str(key), known)}", key=str(key))
    given = [key for key in _SOURCES if value.get(key) is not None]
    if len(given) != 1:
        raise ConfigError(f"needs exactly one of {', '.join(_SOURCES)}; it has {' and '.join(given) or 'none of them'}")
    meanwhile = value.get("meanwhile", Meanwhile.HOLD)
    if meanwhile not in list(Meanwhile):
        message = f"{shown(meanwhile)} is none of {', '.join(Meanwhile)}{did_you_mean(str(meanwhile), Meanwhile)}"
        raise ConfigError(message, key="meanwhile")
    (source,) = given
    fields: dict[str, Any] = {source: value[source]}
    if source in ("steps", "ms"):
        fields[source] = _read_range(value[source], key=source)
    elif source == "file" and not (isinstance(value[source], str) and value[source]):
        raise ConfigError(f"{shown(value[source])} is no file name", key=source)
    elif source == MEASURED and value[source] is not True:
        raise ConfigError(f"{shown(value[source])} is not true; leave it out, or give steps, ms or file", key=source)
    return LatencyConfig(meanwhile=Meanwhile(meanwhile), **fields)


def _read_range(value: Any, *, key: str) -> tuple[Any, Any]:
    """Return the least and the most control steps or time [ms] of one number or two."""
    # A single value stands for both ends.
    given: Any = value if isinstance(value, list | tuple) else (value, value)
    ends: Any = given if len(given) == 2 else (None, None)
    low, high = ends
    if key == "steps":
        if type(low) is not int or type(high) is not int:
            raise ConfigError(f"{shown(value)} is no whole number, and no two such as [1, 4]", key=key)
        most = MAX_STEPS
    else:
        if not all(type(each) in (int, float) and math.isfinite(each) for each in (low, high)):
            raise ConfigError(f"{shown(value)} is no number, and no two such as [40, 120]", key=key)
        low, high, most = float(low), float(high), MAX_MS
    if low < 0:
        raise ConfigError(f"must not be negative, got {low:g}: no answer comes before its query", key=key)
    if high > most:
        raise ConfigError(f"must be at most {most:g}, got {high:g}", key=key)
    if low > high:
        raise ConfigError(f"goes from {low:g} to {high:g}; give the smaller one first", key=key)
    return low, high


TIME_LIMITS = frozenset({"timeout_s", "episode_timeout_s"})
"""Keys of a job that only limit its time."""

WITHOUT_RESULT = TIME_LIMITS | {"labels", "swept", "suite", "controls", "policy_server", "chooses_num_envs"}
"""Keys of a job that decide no result: the hash leaves them out, and a run goes on with others."""


class JobStatus(StrEnum):
    """The state of a job. Only pending jobs are run."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class TrackerName(StrEnum):
    """The services that track a running evaluation."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


@dataclass(frozen=True, kw_only=True)
class SuiteMember:
    """The part of a job in a suite."""

    name: str  # the job file's entry, after its sweep, that all jobs of the suite come from
    suite: str  # registered name of the suite
    task: str  # the job's task in the suite


class ServerScope(StrEnum):
    """The ranks that share a policy server: those of a node, or all of the run."""

    NODE = "node"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class PolicyServerConfig:
    """The policy server that the ranks of a job share."""

    shared: ServerScope
    max_batch: EnvSlots = 64  # env slots that it answers together at most
    # Limit of a query's wait for those of other ranks [ms].
    max_wait_ms: Annotated[float, Field(ge=0, le=MAX_WAIT_MS, allow_inf_nan=False)] = 5.0
    device: Annotated[str, Field(min_length=1)] | None = None  # of its networks, None for a GPU if there is one


UNREADABLE = "?"
"""The environment or the policy of a job that names none, or a wrong one."""


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job as the file describes it, after defaults, interpolation and sweeps."""

    index: int  # position among all jobs of the file, from 0; the assignment of jobs to ranks depends on it
    name: str  # unique, one safe path component
    environment: str  # registered name
    policy_type: str  # registered name or dotted path
    environment_args: Mapping[str, Any] = field(default_factory=dict)  # ``arena_env_args`` without the keys below
    num_envs: int = 1
    chooses_num_envs: bool = False  # True if the program may choose ``num_envs``; once chosen, a resume keeps it
    enable_cameras: bool = False  # True to render the environment's cameras
    placement_seed: int | None = None  # seed of the initial conditions if it differs from ``seed``
    policy_config_dict: Mapping[str, Any] = field(default_factory=dict)  # options of the policy
    policy_server: PolicyServerConfig | None = None  # None if each rank has the policy's network
    latency: LatencyConfig | None = None  # None if the world waits for the answers to the policy's queries
    num_steps: int | None = None  # control steps to run; excludes ``num_episodes``
    num_episodes: int | None = None  # episodes to run over all rebuilds
    max_episodes: int | None = None  # the limit of ``--limit`` for a job without a number of episodes of its own
    num_rebuilds: int = 1  # environment and policy are built as many times
    language_instruction: str | None = None  # the instruction of the policy instead of the task's own
    variations: Mapping[str, Any] = field(default_factory=dict)  # overrides of the environment's variations
    conditions: str | None = None  # file of saved conditions that the episodes start from
    labels: Mapping[str, str] = field(default_factory=dict)  # groups of results, such as ``task`` and ``policy``
    seed: int = 0
    timeout_s: float | None = None  # limit of the job's time, after which it fails [s]
    episode_timeout_s: float | None = None  # limit of an episode's time, after which it is an error [s]
    status: JobStatus = JobStatus.PENDING
    swept: Mapping[str, Any] = field(default_factory=dict)  # dotted keys with the values that a sweep gave this job
    suite: SuiteMember | None = None
    controls: tuple[str, ...] = ()  # the controls that play this job's recording once it is there


@dataclass(frozen=True, kw_only=True)
class JobsFile:
    """A whole job file."""

    path: str  # the file it was read from
    readable_jobs: tuple[JobConfig, ...]  # in order, with ``index`` counting from 0; all of them without problems
    config_hash: str  # hash of the resolved jobs: equal for two files that ask for the same
    questions: tuple[Question, ...] = ()  # the jobs stop as soon as these are answered
    tracking: tuple[TrackerName, ...] = ()  # trackers that log results during the run; not part of the hash
    problems: tuple[Problem, ...] = ()  # of the reading; no job of a file with problems may run

    @property
    def jobs(self) -> tuple[JobConfig, ...]:
        """The jobs of a file without problems; `ConfigError` with all problems if it has some."""
        refuse(self.problems)
        return self.readable_jobs


@dataclass(frozen=True, kw_only=True)
class JobDefaults:
    """Values from the command line for jobs that do not set them."""

    # The first two apply to a job that gives neither steps nor episodes; they exclude each other.
    num_steps: JobCount | None = None
    num_episodes: JobCount | None = None
    num_envs: EnvSlots | None = None
    seed: Seed | None = None
    placement_seed: Seed | None = None  # seed of the initial conditions
    enable_cameras: bool = False
    robustness: Mapping[str, Any] | None = None  # the job's ``robustness``, None for none


# The keys of a job and their values: from a plain dict to a `JobConfig`, or to its problems.

MAX_SECONDS = 100_000_000

_Text = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]


class _EnvironmentArgs(StrictModel):
    """The keys of ``arena_env_args`` that every environment has; the others are the environment's own."""

    model_config = ConfigDict(extra="allow")

    environment: _Text
    # ``auto`` says what a job without a number says.
    num_envs: Annotated[EnvSlots | None, BeforeValidator(lambda value: None if value == "auto" else value)] = None
    enable_cameras: bool | None = None
    placement_seed: Seed | None = None
    env_spacing: float | None = None


class _JobFields(StrictModel):
    """The keys of a job, after defaults, interpolation and sweep."""

    name: str
    arena_env_args: _EnvironmentArgs
    policy_type: _Text
    policy_config_dict: dict[str, Any] | None = None
    python: _Text | None = None
    policy_server: dict[str, Any] | None = None
    latency: Any = None
    num_steps: JobCount | None = None
    num_episodes: JobCount | None = None
    num_rebuilds: JobCount | None = None
    language_instruction: _Text | None = None
    variations: dict[str, Any] | None = None
    conditions: _Text | None = None
    labels: dict[str, _Text | None] | None = None
    seed: Seed | None = None
    timeout_s: _Seconds | None = None
    episode_timeout_s: _Seconds | None = None
    status: str | None = None


ARENA_JOB_KEYS = frozenset({"environment", "policy", "num_envs", "rollout_limit", "environment_builder"})
"""Keys of a job in later versions of Isaac Lab Arena, which are translated to the others."""

JOB_KEYS = frozenset(
    {*_JobFields.model_fields, *ARENA_JOB_KEYS, "policy_args", "sweep", "suite", "checkpoints", "robustness"}
    | {"controls"}
)
"""Every key that a job of the file may have."""

COMMON_ENVIRONMENT_KEYS = frozenset(_EnvironmentArgs.model_fields)
"""The keys of ``arena_env_args`` that every environment has."""

_OF_THE_RUN = frozenset(
    {"device", "policy_device", "gpu_ids", "nproc_per_node", "output_dir", "output_base_dir", "assignment", "limit"}
    | {"resume", "video_episodes", "record_viewport_video", "record_camera_video", "record_observations", "no_dataset"}
)
"""Options of the command line that people look for among the keys of a job."""

_OF_THE_POLICY = frozenset({"checkpoint", "checkpoint_path", "ckpt", "model_path", "pretrained", "weights"})
"""Names by which people look for the file of a policy among the keys of a job."""


def respelt(block: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a block whose misspelt keys have the likely names, without other unknown keys; a problem for each."""
    # So the values of a misspelt key are checked too, and no key is missing because it was misspelt.
    own = {key: value for key, value in block.items() if key in known}
    problems = []
    for key, value in block.items():
        if key in known or value is None:
            continue
        near = nearest_names(key, known)
        hint = f"; an option of the environment is arena_env_args.{key}, one of the policy policy_config_dict.{key}"
        if key in _OF_THE_RUN:
            hint = f"; it is an option of the command line: --{key}"
        elif key in _OF_THE_POLICY:
            near, hint = [], f"; the policy's file is an option of the policy: policy_config_dict.{key}"
        elif near or "policy_type" not in known:
            hint = did_you_mean(key, known)
        problems.append(Problem(f"unknown key{hint}", key=key))
        if len(near) == 1:
            own.setdefault(near[0], value)
    return own, problems


def read_job(
    fields: Mapping[str, Any], *, index: int, label: str, defaults: JobDefaults
) -> tuple[JobConfig | None, list[Problem]]:
    """Check one job; return the valid part of it (None if nothing is readable), and its problems."""
    # ``fields`` are the job's keys after defaults, interpolation and sweep.
    try:
        checked = _JobFields.model_validate(fields)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        problems = []
        for error in errors:
            place, message = ".".join(map(str, error["loc"])), error_message(error, JOB_KEYS)
            if place == "arena_env_args.environment" and error["type"] == "missing":
                near = [key for key in error["input"] if nearest_names(key, ["environment"])]
                message += f"; '{near[0]}' is no name of it" if near else ""
            problems.append(Problem(message, job=label, key=place))
        checked = _without(fields, [error["loc"] for error in errors])
        if checked is None:
            return None, problems
    else:
        problems = []

    # Values that are valid one by one may exclude each other.
    if (unsafe := name_problem(checked.name)) is not None:
        problems.append(Problem(unsafe, job=label, key="name"))
    if checked.num_steps is not None and checked.num_episodes is not None:
        problems.append(Problem("excludes num_episodes; give one of them", job=label, key="num_steps"))
    other = (checked.policy_config_dict or {}).get("python")
    if checked.python is not None and other not in (None, checked.python):
        message = f"is '{checked.python}', and policy_config_dict.python is '{other}'; give one of them"
        problems.append(Problem(message, job=label, key="python"))
    known = [status.value for status in JobStatus]
    if checked.status is not None and checked.status not in known:
        message = f"no status '{checked.status}'{did_you_mean(checked.status, known)}"
        problems.append(Problem(message, job=label, key="status"))
    latency = server = None
    with problems_into(problems, below="latency", job=label):
        latency = read_latency(checked.latency)
    if checked.policy_server is not None:
        with problems_into(problems, below="policy_server", job=label):
            server = read_options(PolicyServerConfig, checked.policy_server, owner="policy_server")

    arguments, policy_options = checked.arena_env_args, checked.policy_config_dict or {}
    num_envs = arguments.num_envs or defaults.num_envs
    # A length of the command line is for jobs without any length of their own.
    has_length = checked.num_steps is not None or checked.num_episodes is not None
    same = ("name", "policy_type", "language_instruction", "conditions", "timeout_s", "episode_timeout_s")
    job = JobConfig(
        **{name: getattr(checked, name) for name in same},
        index=index,
        environment=arguments.environment,
        environment_args={key: value for key, value in (arguments.model_extra or {}).items() if value is not None},
        num_envs=num_envs or 1,
        chooses_num_envs=num_envs is None,
        enable_cameras=defaults.enable_cameras if arguments.enable_cameras is None else arguments.enable_cameras,
        placement_seed=arguments.placement_seed if arguments.placement_seed is not None else defaults.placement_seed,
        policy_config_dict=policy_options if checked.python is None else {**policy_options, "python": checked.python},
        policy_server=server,
        latency=latency,
        num_steps=checked.num_steps if has_length else defaults.num_steps,
        num_episodes=checked.num_episodes if has_length else defaults.num_episodes,
        num_rebuilds=checked.num_rebuilds or 1,
        variations=checked.variations or {},
        labels={key: text for key, text in (checked.labels or {}).items() if text is not None},
        seed=(defaults.seed or 0) if checked.seed is None else checked.seed,
        status=JobStatus(checked.status) if checked.status in known else JobStatus.PENDING,
    )
    if job.num_episodes is not None and job.num_episodes < job.num_rebuilds:
        message = f"{job.num_rebuilds} rebuilds cannot share {job.num_episodes} episodes; each needs at least one"
        problems.append(Problem(message, job=label, key="num_rebuilds"))

    # Later messages must use the same label, even if the name is wrong.
    return replace(job, name=label) if problems else job, problems


def _without(fields: Mapping[str, Any], wrong: Collection[tuple[int | str, ...]]) -> _JobFields | None:
    """Return the valid fields of a job, None if the rest is not readable."""
    sound = {key: value for key, value in fields.items() if (key,) not in wrong}
    for place in wrong:
        block = sound.get(str(place[0]))
        if len(place) > 1 and isinstance(block, Mapping):
            sound[str(place[0])] = {key: value for key, value in block.items() if key != place[1]}
    unread = {"name": UNREADABLE, "policy_type": UNREADABLE}
    arguments = {"environment": UNREADABLE, **sound.get("arena_env_args", {})}
    try:
        return _JobFields.model_validate({**unread, **sound, "arena_env_args": arguments})
    except ValidationError:
        return None


# Read the comparisons and bars of a job file, and report all their problems.

_Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_DECIDES_NO_CONDITIONS = frozenset({"backend"})


class _Stop(StrictModel):
    """The conditions under which a question is answered."""

    alpha: _Share = 0.05
    max_episodes: Annotated[int, Field(ge=1)] | None = None


class _StopOfBar(_Stop):
    """The conditions under which a bar is answered."""

    half_width: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] | None = None


class _Comparison(StrictModel):
    """The keys of a comparison."""

    name: str
    jobs: Annotated[list[str], Field(min_length=1)]
    margin: _Share | None = None
    select: Literal["best"] | None = None
    stop: _Stop


class _Bar(StrictModel):
    """The keys of a bar."""

    job: str
    at_least: _Share | None = None
    name: str | None = None
    stop: _StopOfBar


def read_questions(
    comparisons: Sequence[Any], bars: Sequence[Any], jobs: tuple[JobConfig, ...]
) -> tuple[tuple[Question, ...], tuple[JobConfig, ...]]:
    """Return the questions of a file, and its jobs (after sweeps); ConfigError lists every problem."""
    # The questions are the comparisons, then the bars, in order of the file. `names` has those of wrong ones too.
    questions: list[Question] = []
    names: dict[str, str] = {}
    problems: list[Problem] = []
    blocks = [(f"comparisons[{position}]", _Comparison, block) for position, block in enumerate(comparisons)]
    for key, kind, block in [*blocks, *((f"bars[{position}]", _Bar, block) for position, block in enumerate(bars))]:
        if not isinstance(block, dict):
            problems.append(Problem(f"{shown(block)} is not a mapping", key=key))
            continue
        if isinstance(block.get("name"), str):
            names[key] = block["name"]
        try:
            asked = kind.model_validate(block)
        except ValidationError as invalid:
            problems += problems_of(invalid, key, choices={*kind.model_fields, *_StopOfBar.model_fields})
        else:
            with problems_into(problems):
                question = _checked_question(key, asked, jobs, names)
                questions.append(question)

    # A question must not have the name of another question or of a job.
    keys = {name: key for key, name in names.items()}
    for name, earlier in clashes(names.values()):
        taken = f"'{name}' is taken" if name == earlier else f"'{name}' is too much like '{earlier}'"
        problems.append(Problem(f"{taken} by an earlier question", key=f"{keys[name]}.name"))
    own = {job.name for job in jobs}
    problems += [
        Problem(f"'{name}' is the name of a job too; give it another one", key=f"{key}.name")
        for key, name in names.items()
        if name in own
    ]
    refuse(problems)

    # A job without a length has the number of episodes that its questions need.
    with_length = []
    for job in jobs:
        needed = [question.max_episodes for question in questions if job.name in question.jobs]
        with_length.append(replace(job, num_episodes=max(needed)) if needed and job.num_episodes is None else job)
    return tuple(questions), tuple(with_length)


def _checked_question(
    key: str, asked: _Comparison | _Bar, jobs: Sequence[JobConfig], names: dict[str, str]
) -> Question:
    """Return one question, and add its name to those of the file; ConfigError lists every problem."""
    of: dict[str, Any]
    problems: list[Problem] = []
    if isinstance(asked, _Comparison):
        name, place, given = asked.name, f"{key}.jobs", asked.jobs
        of = {"margin": asked.margin, "selects_best": asked.select is not None}
        if asked.select is not None and asked.margin is not None:
            problems.append(Problem("excludes select; give one of them", key=f"{key}.margin"))
    else:
        name, place, given = asked.name, f"{key}.job", [asked.job]
        at_least, half_width = asked.at_least, asked.stop.half_width
        of = {"at_least": at_least, "half_width": half_width}
        bar = f"within {half_width:g}" if at_least is None and half_width is not None else f"at least {at_least or 0:g}"
        name = f"{asked.job} {bar}" if name is None else name
        if (at_least is None) == (half_width is None):
            message = "is missing; give it, or stop.half_width" if at_least is None else "excludes stop.half_width"
            problems.append(Problem(message, key=f"{key}.at_least"))
    sides, wrong = _sides(place, given, jobs, names.values(), is_race=of.get("selects_best", False))
    problems += wrong
    known = [job for own in sides.values() for job in own]
    of |= {"jobs": tuple(job.name for job in known), "arms": tuple(sides) if len(known) > len(sides) else ()}
    kinds = {(job.environment, str(job.environment_args.get("object"))) for job in known}
    of["are_apart"] = bool(of["arms"]) and len(kinds) * len(sides) == len(known)
    names[key] = name
    if (unsafe := name_problem(name)) is not None:
        problems.append(Problem(unsafe, key=f"{key}.name"))

    # The question considers the number of episodes that it gives, or that all of its jobs have.
    max_episodes, problem = asked.stop.max_episodes, None
    lengths = {job.name: job.num_episodes for job in known if job.num_episodes is not None}
    without = [job.name for job in known if job.num_episodes is None]
    if max_episodes is not None:
        short = next(((job, length) for job, length in lengths.items() if max_episodes > length), None)
        if short is not None:
            problem = f"{max_episodes} is more than the {short[1]} episodes of job '{short[0]}'"
    elif without:
        problem = f"is missing: job '{without[0]}' has no num_episodes; give either"
    elif len(set(lengths.values())) > 1:
        # One job of each length.
        unequal = {length: job for job, length in reversed(lengths.items())}
        told = " and ".join(f"'{job}' has {length} episodes" for length, job in reversed(unequal.items()))
        problem = f"is missing: {told}; say how many are compared at most"
    # An unknown job has an unknown length too, and the missing job is the problem to report.
    if problem is not None and all(sides.values()):
        problems.append(Problem(problem, key=f"{key}.stop.max_episodes"))
    refuse(problems)
    longest = max(lengths.values(), default=0) if max_episodes is None else max_episodes
    return Question(name=name, max_episodes=longest, alpha=asked.stop.alpha, **of)


def _sides(
    place: str, given: Sequence[str], jobs: Sequence[JobConfig], questions: Collection[str], *, is_race: bool
) -> tuple[Mapping[str, Sequence[JobConfig]], list[Problem]]:
    """Return the jobs of each side of a question, a single one or the tasks of a suite, and what is wrong with them."""
    by_name = {job.name: job for job in jobs}
    suites: defaultdict[str, list[JobConfig]] = defaultdict(list)
    for job in jobs:
        if job.suite is not None:
            suites[job.suite.name].append(job)
    # In a race a pattern such as go1-* stands for all jobs of that name outside suites, and for all suites.
    if is_race:
        choices = [*(job.name for job in jobs if job.suite is None), *suites]
        given = [*dict.fromkeys(name for each in given for name in fnmatch.filter(choices, each) or [each])]
    sides = {each: [by_name[each]] if each in by_name else suites.get(each, []) for each in given}
    found = [_why_unusable(each, own, [*by_name, *suites], questions) for each, own in sides.items()]
    if len(given) > len(sides):
        found.append(f"compares job '{given[0]}' with itself")
    elif place.endswith(".jobs") and (len(given) < 2 or (len(given) > 2 and not is_race)):
        way_out = "the best is selected of two or more" if is_race else "two are compared; select: best takes more"
        found.append(f"names {len(given)}, and {way_out}")
    first, *others = sides
    for other in others if all(sides.values()) else ():
        found += _unpaired(first, sides[first], other, sides[other])
    return sides, [Problem(message, key=place) for message in found if message is not None]


def _why_unusable(
    name: str, jobs: Sequence[JobConfig], known: Collection[str], questions: Collection[str]
) -> str | None:
    """Return the reason why a question cannot use a job, or the tasks of a suite, None if it can."""
    if not jobs and name in questions:
        return f"'{name}' is a comparison; name the jobs themselves"
    if not jobs:
        return f"there is no job '{name}'{did_you_mean(name, known)}"
    if jobs[0].name == name and jobs[0].suite is not None:
        return f"job '{name}' is a task of suite '{jobs[0].suite.name}'; name the suite, whose tasks stop together"
    tasks = [job.suite.task for job in jobs if job.suite is not None]
    if len(set(tasks)) < len(tasks):
        return f"suite '{name}' has several jobs of a task, such as robustness arms; their mean is no rate of the suite"
    for job in jobs:
        if job.status is not JobStatus.PENDING:
            return f"job '{job.name}' does not run: its status is '{job.status}'"
        if job.num_steps is not None:
            return f"job '{job.name}' has num_steps; give it num_episodes instead"
    return None


def _unpaired(name: str, jobs: Sequence[JobConfig], other_name: str, others: Sequence[JobConfig]) -> Iterator[str]:
    """Yield the reasons why two jobs or suites have no episodes that start from the same conditions."""
    tasks, other_tasks = ([job.suite and job.suite.task for job in own] for own in (jobs, others))
    if tasks != other_tasks:
        yield f"'{name}' and '{other_name}' give no pairs: they have other tasks"
        return
    for first, second in zip(jobs, others, strict=True):
        # Episodes start alike if the jobs share these settings.
        facts = [
            {
                **{name: value for name, value in job.environment_args.items() if name not in _DECIDES_NO_CONDITIONS},
                "environment": job.environment,
                "the seed of its conditions": job.seed if job.placement_seed is None else job.placement_seed,
                "variations": dict(job.variations),
                "conditions": job.conditions,
            }
            for job in (first, second)
        ]
        found = []
        for fact in sorted(facts[0].keys() | facts[1].keys()):
            one, two = (each.get(fact) for each in facts)
            if one != two:
                found.append(
                    f"'{first.name}' and '{second.name}' give no pairs: {fact} is {shown(one)} and {shown(two)}"
                )
        rebuilt = (job for job in (first, second) if job.num_rebuilds > 1)
        found += [f"job '{job.name}' has num_rebuilds {job.num_rebuilds}; compared jobs need 1" for job in rebuilt]
        yield from found
        # The tasks of a suite usually share what is wrong.
        if found:
            return
