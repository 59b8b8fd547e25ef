"""Define the options that both runners share, and read command lines, including Isaac Lab Arena's spellings."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import tyro
from pydantic import Field

from isaaclab_arena.config.arena import ALIASES, REFUSED, FlagsWithoutEffect, is_no_solver_here, is_override
from isaaclab_arena.config.command_line import read_some, unknown_options
from isaaclab_arena.config.loading import tracker_problems
from isaaclab_arena.config.options import Amount, Count, NotNegative, wrong_numbers
from isaaclab_arena.config.schema import EnvSlots, JobDefaults
from isaaclab_arena.distributed.context import claimed_rank, is_a_rank
from isaaclab_arena.distributed.devices import check_policy_device, joined_gpu_ids
from isaaclab_arena.distributed.launch import LaunchOptions, with_empty_resume
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, problems_into, refuse
from isaaclab_arena.logs import plain_text
from isaaclab_arena.recording import MAX_FPS, VideoOptions
from isaaclab_arena.registry import check_optional_library
from isaaclab_arena.storage.layout import RUN_PLAN_FILE

_Options = TypeVar("_Options")

MAX_THREADS = 4_096

Threads: TypeAlias = Annotated[int, Field(ge=1, le=MAX_THREADS)]


# The assignments of episodes to ranks: a new one is one more declaration here.


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A way to give the jobs of a run, and their episodes, to its ranks."""

    name: str
    about: str  # for the help, without a full stop
    # (job index, world size) -> the rank that runs the whole job, or begins with its first share.
    first_rank: Callable[[int, int], int] = lambda index, world_size: index % world_size
    shares_jobs: bool = False  # every rank gets a share of each job before the start
    claims: bool = False  # ranks claim pieces of jobs as they go, in a claim table; nothing is settled before the start

    @property
    def deals_whole_jobs(self) -> bool:
        """Whether each job has one rank, settled before the start."""
        return not (self.shares_jobs or self.claims)


ROUND_ROBIN = Assignment(name="round_robin", about="whole jobs in turn")
SPLIT = Assignment(name="split", about="all ranks share each job of known length", shares_jobs=True)
DYNAMIC = Assignment(name="dynamic", about="ranks claim parts of jobs as they go", claims=True)

ASSIGNMENTS = {each.name: each for each in (ROUND_ROBIN, SPLIT, DYNAMIC)}
AUTO = "auto"  # round_robin; ranks that this program starts split the jobs instead where a rank would have none
_ASSIGNMENTS_IN_WORDS = "; ".join(f"{name}: {each.about}" for name, each in ASSIGNMENTS.items())
_ASSIGNMENT_HELP = (
    f"Assignment of episodes to ranks. {_ASSIGNMENTS_IN_WORDS}; auto: round_robin, or split where a rank of "
    "--nproc_per_node or --gpu_ids would have no job."
)


# The options, by what depends on them.


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What to run, besides the jobs' own settings."""

    heading: ClassVar[str] = "job"

    policy_device: str | None = None
    """Device of policies with an option of that name."""
    policy_device_id: int | None = None
    """GPU index of policies with an option of that name."""
    num_envs: Count | None = None
    """Env slots of jobs without a number of their own."""
    num_steps: Count | None = None
    """Control steps of jobs without steps or episodes of their own."""
    num_episodes: Count | None = None
    """Episodes of jobs without steps or episodes of their own."""
    seed: NotNegative | None = None
    """Seed of jobs without their own."""
    placement_seed: NotNegative | None = None
    """Seed of the initial conditions of jobs without their own, if it differs from the seed."""
    enable_cameras: bool = False
    """Show policies the cameras' pictures, in every job without its own setting."""
    list_variations: bool = False
    """Show the possible variations of each job's environment, and exit."""
    no_import: bool = False
    """Refuse jobs that would import unregistered code: dotted class paths, interpreters, module:id."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where the results are written, and which run is resumed."""

    heading: ClassVar[str] = "output"

    output_base_dir: str = "outputs"
    """Parent of the run's dated directory."""
    output_dir: str | None = None
    """Exact directory for this run, instead of a dated one; missing or empty, or with --resume that of the run."""
    resume: str | None = None
    """Resume a run: that of the directory, of --output_dir, or the newest of --output_base_dir with the same jobs."""
    rerun: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """With --resume, run this job's episodes again if its policy or environment has changed; repeatable."""
    retry_errors: bool = False
    """With --resume, run episodes with an error again; the table counts them."""
    save_conditions: str | None = None
    """File for the start of every episode; a job's 'conditions: FILE' runs the same episodes again."""


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What is recorded, and how exactly results repeat. A resumed run must have the same options."""

    heading: ClassVar[str] = "recording"

    limit: Count | None = None
    """Run at most this many episodes of each job, to try a job file; the table notes it."""
    no_dataset: bool = False
    """Record no HDF5 datasets, only one line per episode."""
    record_observations: Literal["none", "state", "all"] = "state"
    """Observations in the datasets: none, the policy group, or also images."""
    compression: Literal["none", "lzf", "gzip", "zstd"] = "none"
    """Compression of the datasets; zstd needs the extra of that name."""
    deterministic: bool = False
    """Query policies in batches of one fixed size, so that results have the same bits for any num_envs."""
    policy_batch: EnvSlots = 64
    """Size of that batch, with --deterministic; at least every job's num_envs."""
    torch_threads: Threads = 1
    """Torch threads of this rank."""
    pipeline: EnvSlots = 1
    """Number of groups of a job's env slots: with 2, one is simulated while the policy acts for the other."""

    def fixed_policy_batch(self) -> int | None:
        """Return the number of env slots of every policy call, None for the job's num_envs."""
        return self.policy_batch if self.deterministic else None

    def result_settings(self) -> dict[str, Any]:
        """Return the options of this class by name, as the plan keeps them."""
        settings = {field.name: getattr(self, field.name) for field in fields(ResultOptions)}
        # With batches of one fixed size it decides nothing how the env slots are divided.
        pipeline = None if self.deterministic or self.pipeline == 1 else self.pipeline
        return {**settings, "policy_batch": self.fixed_policy_batch(), "pipeline": pipeline}


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Films, the page and trackers. No result depends on them."""

    heading: ClassVar[str] = "film and report"

    record_camera_video: bool = False
    """Film every episode through the robot's cameras: <job>/videos/robot-cam-*.mp4, and a contact sheet."""
    record_viewport_video: bool = False
    """Film every episode from beside the scene: <job>/videos/viewport-*.mp4, and a contact sheet. Environments gym:<id>
    render if they have make_kwargs: {render_mode: rgb_array}."""
    video_episodes: str = "all"
    """Episodes of a job to film: all, failures, or a number N for the first N."""
    video_fps: Annotated[float, Field(gt=0, le=MAX_FPS)] = 10.0
    """Frames per second of robot time and of the video, which plays in real time; at most one per step."""
    no_report: bool = False
    """Write no report.html, the page with the figures and films of the run."""
    tracking: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Log results during the run to wandb, tensorboard or mlflow, besides the trackers of the job file; may be given
    several times. Each needs the extra of its name."""

    def video_options(self) -> VideoOptions:
        """Return the options of the films. `ConfigError` unless ``video_episodes`` is all, failures or a number."""
        episodes = self.video_episodes
        if episodes not in {"all", "failures"} and not (episodes.isascii() and episodes.isdigit() and int(episodes)):
            raise ConfigError(f"give all, failures or a number, got '{episodes}'", key="--video_episodes")
        return VideoOptions(
            camera=self.record_camera_video,
            viewport=self.record_viewport_video,
            first_episodes=int(episodes) if episodes.isdigit() else None,
            only_failures=episodes == "failures",
            frames_per_second=self.video_fps,
        )


@dataclass(frozen=True, kw_only=True)
class RankOptions(LaunchOptions):
    """How many ranks, on which devices, and how they share the jobs."""

    heading: ClassVar[str] = "rank"

    device: str | None = None
    """Device of the simulation: cpu, cuda or cuda:<index>. By default a GPU if there is one, each rank its own."""
    num_threads: Threads | None = None
    """Physics threads of this rank. By default its share of the cores."""
    assignment: Annotated[str, tyro.conf.arg(help=_ASSIGNMENT_HELP)] = AUTO
    lease_s: Annotated[float, Field(ge=1)] = 30.0
    """With dynamic assignment, silence of a rank after which another one takes over its work [s]."""
    eager_pictures: bool = False
    """Draw every picture in every step, also without a reader: the same results, slower."""
    process_group: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend between ranks: auto (NCCL if each rank has its own GPU and it works, else gloo), nccl or gloo."""


@dataclass(frozen=True, kw_only=True)
class StoppingOptions:
    """When a job or the run ends early."""

    heading: ClassVar[str] = "stopping"

    step_timeout_s: Amount = 1800.0
    """Time without a finished control step after which a hanging rank is ended [s]; 0 for no limit."""
    build_timeout_s: Amount = 3600.0
    """Time to build a job's environment, with its cameras' first pictures, and policy [s]; 0 for no limit."""
    max_equal_errors: NotNegative = 20
    """Consecutive episodes of a job with the same error after which the job fails; 0 for no limit."""
    fail_fast: bool = False
    """Stop at the first failed job."""


@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """For command lines of Isaac Lab Arena."""

    heading: ClassVar[str] = "compatibility"

    split_jobs: bool = False
    """The same as --assignment split; dynamic shares jobs anyway."""
    continue_on_error: bool = False
    """Go on after a failed job, which is the default; excludes --fail_fast."""


_IGNORED = ", ".join(f"--{field.name}" for field in fields(FlagsWithoutEffect))
CompatibilityOptions.__doc__ = f"For command lines of Isaac Lab Arena. Accepted and ignored: {_IGNORED}."


@dataclass(frozen=True, kw_only=True)
class IgnoredOptions(FlagsWithoutEffect):
    """The options that the help only names."""

    heading: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class RunOptions(
    JobOptions,
    PlaceOptions,
    RankOptions,
    ResultOptions,
    DisplayOptions,
    StoppingOptions,
    CompatibilityOptions,
    IgnoredOptions,
):
    """Options of any run. The heading of an option's class is its group in the help, in this order."""

    @property
    def mode(self) -> Assignment:
        """How jobs are given to ranks; `ConfigError` if there is no such assignment."""
        mode = ROUND_ROBIN if self.assignment == AUTO else ASSIGNMENTS.get(self.assignment)
        if mode is None:
            near = did_you_mean(self.assignment, [*ASSIGNMENTS, AUTO])
            raise ConfigError(f"there is no '{self.assignment}'{near}", key="--assignment")
        return SPLIT if self.split_jobs and mode.deals_whole_jobs else mode

    def job_defaults(self) -> JobDefaults:
        """Return the defaults of the command line for jobs that do not say them."""
        num_steps = self.num_steps
        if self.list_variations and num_steps is None and self.num_episodes is None:
            # The possible variations depend on no length, and nothing runs.
            num_steps = 1
        return JobDefaults(
            num_steps=num_steps,
            num_episodes=self.num_episodes,
            num_envs=self.num_envs,
            seed=self.seed,
            placement_seed=self.placement_seed,
            enable_cameras=self.enable_cameras,
        )

    def check(self) -> None:
        """Refuse options that contradict each other, and missing devices: `ConfigError` with every problem."""
        # For every check: the option, whether it is wrong, and the message.
        is_new = self.resume is None
        mistakes = [
            ("num_steps", None not in (self.num_steps, self.num_episodes), "give either this or --num_episodes"),
            ("fail_fast", self.fail_fast and self.continue_on_error, "contradicts --continue_on_error"),
        ]
        for name in ("output_dir", "output_base_dir", "save_conditions", "launcher_log_dir"):
            value = getattr(self, name)
            wrong = value is not None and plain_text(value) != value
            mistakes.append((name, wrong, f"{value!a} holds a control character; use a name without it"))
        mistakes += [
            ("record_trajectories", self.record_trajectories and self.no_dataset, "contradicts --no_dataset"),
            ("serve_evaluation_report", self.serve_evaluation_report and self.no_report, "contradicts --no_report"),
            (
                "presets",
                self.presets is not None and is_no_solver_here(self.presets),
                f"there is no '{self.presets}' here; MuJoCo or MuJoCo-Warp simulates every environment",
            ),
            ("retry_errors", self.retry_errors and is_new, "needs --resume: it continues an earlier run"),
            (
                "rerun",
                bool(self.rerun) and is_new,
                "needs --resume: it runs jobs of an earlier run again; give --resume DIR too",
            ),
        ]
        if self.resume and self.output_dir is not None:
            differs = Path(self.resume).resolve() != Path(self.output_dir).resolve()
            mistakes.append(("resume", differs, f"names '{self.resume}', but --output_dir '{self.output_dir}'"))
        if self.save_conditions is not None:
            path = Path(self.save_conditions)
            mistakes += [
                ("save_conditions", path.exists() and is_new, f"{path} exists already"),
                ("save_conditions", not path.absolute().parent.is_dir(), "the directory of this file does not exist"),
            ]

        problems = [Problem(message, key=f"--{name}") for name, wrong, message in mistakes if wrong]
        with problems_into(problems):
            _ = self.mode
        problems += wrong_numbers(self)
        problems += tracker_problems(self.tracking, key="--tracking")
        refuse(problems)
        self.video_options()
        check_policy_device(policy_device_id=self.policy_device_id, policy_device=self.policy_device)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Ranks on the nodes of a Ray cluster."""

    heading: ClassVar[str] = RankOptions.heading

    cluster: Literal["ray"] | None = None
    """Run the ranks as actors of a Ray cluster, whose nodes need no shared disk; needs the extra ray."""
    ray_address: str = "auto"
    """With --cluster ray, the cluster: auto for the one of this node, local for a new one, or HOST:PORT."""
    num_ranks: Count = 1
    """With --cluster, the most ranks at once."""
    gpus_per_rank: Annotated[float, Field(ge=0)] = 0.0
    """With --cluster, GPUs of each rank: a whole number, or a part of one GPU such as 0.5."""
    cpus_per_rank: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster, cores of each rank, and its number of physics threads."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """With --cluster, longest wait for the resources of the first rank [s]."""
    node_dir: str | None = None
    """With --cluster, directory on each node for files on their way to the run's directory. By default the run's
    directory if the node sees it, else a temporary one."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(RunOptions, NodeOptions):
    """Options of a run whose ranks may be on the nodes of a cluster."""

    def check_cluster(self) -> None:
        """Raise `ConfigError` with every contradiction of the cluster options."""
        asks, device = self.cluster is not None, self.device or "cpu"
        given = [each.name for each in fields(NodeOptions)[1:] if getattr(self, each.name) != each.default]
        starts_here = "starts ranks on this node; leave it out with --cluster"
        once = "starts the ranks itself; start this program once, without torchrun, srun or mpirun"
        claims = "ranks of a cluster claim work as they go: leave it out, or use dynamic"
        without_gpu = device.startswith("cuda") and self.gpus_per_rank == 0
        mistakes = [
            *((name, not asks, "has no effect without --cluster ray") for name in given),
            ("cluster", asks and is_a_rank(), once),
            ("gpu_ids", asks and self.gpu_ids is not None, starts_here),
            ("nproc_per_node", asks and self.nproc_per_node is not None, starts_here),
            ("assignment", asks and not self.mode.claims, claims),
            ("gpus_per_rank", self.gpus_per_rank > 1, "a rank simulates on one GPU; give 1, or a fraction"),
            ("device", asks and without_gpu, f"'{self.device}' needs --gpus_per_rank 1"),
        ]
        refuse([Problem(message, key=f"--{name}") for name, is_wrong, message in mistakes if is_wrong])
        if self.cluster is not None:
            check_optional_library(self.cluster, key="--cluster")


def read_command_line(
    options_class: type[_Options], arguments: Sequence[str], *, program: str
) -> tuple[_Options, list[str]]:
    """Read a command line into a dataclass, and return it with the other arguments, in order."""
    # Underscores and hyphens are the same. The docstrings of `options_class` are the help of `program`. `ConfigError`
    # for `--gpu_ids` without any, or one option under two names; `SystemExit` for `--help` or a malformed option.

    # Replace the names that Isaac Lab Arena gives to options of this package.
    spellings: dict[str, str] = {}
    translated = []
    # An environment's name may follow ``--resume``.
    for argument in joined_gpu_ids(with_empty_resume(arguments, is_run=is_run)):
        option, equals, value = argument.partition("=")
        given = option.removeprefix("--").replace("-", "_")
        name = ALIASES.get(given, given) if option.startswith("--") else given
        if option.startswith("--") and spellings.setdefault(name, given) != given:
            raise ConfigError(f"is the same option as --{spellings[name]}; give one of them", key=f"--{given}")
        translated.append(f"--{name}{equals}{value}" if name != given else argument)

    return read_some(options_class, translated, program=program, on_console=claimed_rank() == 0)


def is_run(argument: str) -> bool:
    """Whether the word after ``--resume`` is the directory of a run, and not, say, an environment's name."""
    if argument.startswith("-") or is_override(argument):
        return False
    return os.sep in argument or (Path(argument) / RUN_PLAN_FILE).is_file()


def refuse_unknown(unknown: Sequence[str], options: Any) -> None:
    """Refuse the arguments that `read_command_line` left over: a problem for each, with the nearest known option."""
    wrong = unknown_options(unknown, [field.name for field in fields(options)])
    reasons = ((each, REFUSED.get((each.key or "").removeprefix("--"))) for each in wrong)
    problems = [each if reason is None else replace(each, message=reason) for each, reason in reasons]
    if not problems and unknown:
        named_no_run = getattr(options, "resume", None) == ""
        # ``limit=2`` is how other programs write an option.
        is_option = unknown[0].partition("=")[0].replace("-", "_") in {field.name for field in fields(options)}
        hint = f"; did you mean '--{unknown[0]}'?" if is_option else ""
        what = f"there is no run in '{unknown[0]}'" if named_no_run else f"unexpected argument '{unknown[0]}'{hint}"
        problems.append(Problem(what, key="--resume" if named_no_run else None))
    refuse(problems)
