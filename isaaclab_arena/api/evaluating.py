"""Evaluate policies from Python, as the command line does and in the middle of another program."""

import importlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, Unpack, overload

import torch
import torch.distributed as dist

from isaaclab_arena.api import Results
from isaaclab_arena.config.options import read_options
from isaaclab_arena.distributed import context
from isaaclab_arena.distributed.devices import selectable_gpu_count, set_up_torch
from isaaclab_arena.distributed.ranks import initialise, ranks_of_one
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, problems_at
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.options import RunOptions, refuse_unknown
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.policy_runner import job_request
from isaaclab_arena.evaluation.process import left_alone, watch_as_guest
from isaaclab_arena.evaluation.run import RankHost, run
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.logs import set_up_console_logging
from isaaclab_arena.paths import expanded, given_path
from isaaclab_arena.policy.catalog import LentPolicy, lent_policy, modules_at_rest, name_of_lent, resolve_policy_class
from isaaclab_arena.results.merge import read
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.ledger import RESULTS_FILE, make_output_directory
from isaaclab_arena.workers import stop_kept_workers


class ActsOnObservations(Protocol):
    """An object of any class with the methods of Isaac Lab Arena's policies; ``reset(env_ids)`` is optional."""

    def get_action(self, env: Environment, observation: Observation) -> Any:
        """Return the action of every env slot. Shape: (num_envs, action_dim)."""
        ...


PolicyLike: TypeAlias = str | type[PolicyBase[Any]] | PolicyBase[Any] | ActsOnObservations | Callable[[Any], Any]
"""A policy for `evaluate`: a registered name, a class path, a class, an object or a function.

A function or torch module gets the observation of all env slots: a nested dict of tensors (num_envs, ...) on the
environment's device, such as ``observation["policy"]["robot_joint_pos"]``. It returns the actions, a tensor or an array
(num_envs, action_dim). An object has ``get_action(env, observation)``, and ``reset(env_ids)`` if it remembers anything.
Modules that an object is or holds are in evaluation mode meanwhile. Objects are not closed.
"""


class RunKeywords(TypedDict, total=False):
    """Options of a run, which the command line has under the same names and explains."""

    device: str | None
    policy_device: str | None
    policy_device_id: int | None
    num_steps: int | None
    placement_seed: int | None
    limit: int | None
    output_base_dir: "str | PathLike[str]"
    resume: "str | PathLike[str] | bool | None"
    rerun: tuple[str, ...]
    retry_errors: bool
    no_dataset: bool
    record_observations: Literal["none", "state", "all"]
    compression: Literal["none", "lzf", "gzip", "zstd"]
    eager_pictures: bool
    record_camera_video: bool
    record_viewport_video: bool
    video_episodes: str
    video_fps: float
    no_report: bool
    save_conditions: "str | PathLike[str] | None"
    tracking: tuple[str, ...]
    fail_fast: bool
    continue_on_error: bool
    max_equal_errors: int
    assignment: str
    split_jobs: bool
    lease_s: float
    deterministic: bool
    policy_batch: int
    pipeline: int
    step_timeout_s: float
    build_timeout_s: float
    no_import: bool
    num_threads: int | None
    torch_threads: int
    process_group: Literal["auto", "nccl", "gloo"]


class JobFileKeywords(RunKeywords, total=False):
    """Options of a run of a job file: those of `RunKeywords`, and defaults for its jobs."""

    num_episodes: int | None
    num_envs: int | None
    seed: int | None
    enable_cameras: bool


class JobKeywords(RunKeywords, total=False):
    """Options of a run of one job: those of `RunKeywords`, and those of the included environments."""

    # Environments of other packages have options of their own, which go into ``environment_args``.
    conditions: "str | PathLike[str]"
    backend: Literal["auto", "mujoco", "warp"]
    viewport_width: int
    viewport_height: int
    camera_width: int
    camera_height: int
    camera_size: int | None
    camera_depth: bool
    camera_segmentation: bool
    embodiment: str
    object: str
    action_mode: Literal["joint_position", "ee_delta"]
    start: Literal["upright", "hanging", "beginning", "anywhere"]
    motion_file: "str | PathLike[str] | None"


# The request for an evaluation from Python: the jobs of a file, or one policy in one environment.

_NAME_THE_DIRECTORY = ("output_dir", "output_base_dir", "resume")
"""Options that name the run's directory. Without them it is a temporary one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The jobs of a file, or one policy in one environment, with the options of the run by name."""

    given: Mapping[str, Any]
    jobs_file: str | None = None
    block: Mapping[str, Any] = field(default_factory=dict)  # without a file: the job as a job file would describe it
    policy: Any = None  # an object that the caller lends, None for a policy that is built
    # The policy's class if no other process could import it, or the policy that is lent.
    only_here: type[PolicyBase] | LentPolicy | None = None


def run_options(asked: Asked, *, is_guest: bool) -> RunOptions:
    """Check options by name like the command line; ConfigError lists the unknown, ill-typed and contradictory ones."""
    # Values may be path objects, and ``resume=True`` means the run in ``output_dir``.
    options_class, given = RunOptions, asked.given
    if asked.jobs_file is not None:
        options_class, given = eval_runner.EvalOptions, {**given, "eval_jobs_config": asked.jobs_file}
    known = {option.name for option in fields(options_class)}
    refuse_unknown([f"--{name}" for name in given if name not in known], options_class)
    plain = {
        name: fspath(value) if isinstance(value, PathLike) else value
        for name, value in given.items()
        if value is not None
    }
    if isinstance(plain.get("resume"), bool):
        plain["resume"] = plain.get("output_dir", "") if plain["resume"] else None
    if plain.get("resume") == "":
        raise ConfigError("names no run; give its directory, here or as output_dir", key="--resume")
    # A guest runs in the caller's process, which the watchdog must not end.
    without_watchdog = {"step_timeout_s": 0.0, "build_timeout_s": 0.0}
    try:
        options = read_options(options_class, {**(without_watchdog if is_guest else {}), **plain}, owner="evaluate")
    except ConfigError as error:
        raise ConfigError([replace(each, key=f"--{each.key}") for each in error.problems]) from error
    if options.list_variations:
        raise ConfigError("runs nothing; use isaaclab-arena", key="--list_variations")
    options.check()
    lent = asked.only_here
    if isinstance(lent, LentPolicy) and options.pipeline > 1 and "with_own_memory" not in lent.policy.offers:
        message = "needs a policy of its own for each group, and one object was given; name a class instead"
        raise ConfigError(message, key="--pipeline")
    return options


def request_of(asked: Asked, options: RunOptions, *, world_size: int) -> RunRequest:
    """Return the checked request; see `jobs_request` and `job_request`."""
    if isinstance(options, eval_runner.EvalOptions):
        return eval_runner.jobs_request(options, (), as_arguments(options))
    given = asked.only_here
    is_lent = isinstance(given, LentPolicy)
    if options.resume is not None and is_lent and "unknown" in given.content.stated.values():
        message = "cannot resume with a policy object, which may have changed; start a new run, or name a class"
        raise ConfigError(message, key="--resume")
    if given is None:
        with problems_at(key="--policy_type"):
            declared_options(resolve_policy_class(asked.block["policy_type"], may_import=not options.no_import))
    options = replace(options, split_jobs=True) if world_size > 1 else options
    return job_request(options, asked.block, policy=given)


def as_arguments(options: RunOptions) -> list[str]:
    """Return the command line that gives these options."""
    arguments: list[str] = []
    for option in fields(options):
        name, value = option.name, getattr(options, option.name)
        if value == option.default or value is None:
            continue
        if value is True:
            arguments.append(f"--{name}")
        else:
            for each in value if isinstance(value, tuple) else (value,):
                arguments += [f"--{name}", str(Path(each).absolute()) if name == "resume" else str(each)]
    return arguments


def asked_for(jobs: "str | PathLike[str] | None", given: Mapping[str, Any], *, num_ranks: int | None) -> Asked:
    """Return the request of `evaluate`'s arguments; ConfigError unless it is a job file or environment and policy."""
    given = {name: value if name == "policy" else expanded(value) for name, value in given.items()}
    missing = [name for name in ("environment", "policy") if given.get(name) is None]
    if num_ranks is not None and num_ranks < 1:
        raise ConfigError(f"must be at least 1, got {num_ranks}", key="num_ranks")
    if jobs is not None and len(missing) < 2:
        raise ConfigError("give either this or an environment and a policy", key="jobs")
    if jobs is not None:
        return Asked(jobs_file=str(given_path(jobs)), given=given)
    if missing:
        message = "is missing; give a job file, or an environment and a policy"
        raise ConfigError([Problem(message, key=name) for name in missing])

    # A class that other processes cannot import, and an object that is lent, are only here.
    policy, policy_config = given.pop("policy"), given.pop("policy_config", None) or {}
    policy_type: str = policy if isinstance(policy, str) else name_of_lent(policy)
    only_here: type[PolicyBase] | LentPolicy | None = None
    lent = None
    if isinstance(policy, type):
        if not issubclass(policy, PolicyBase):
            message = f"'{policy_type}' is not a policy: it must be a class derived from PolicyBase"
            raise ConfigError(message, key="policy")
        module = importlib.import_module(policy.__module__)
        can_be_imported = module.__name__ != "__main__" and getattr(module, policy.__qualname__, None) is policy
        only_here = None if can_be_imported else policy
    elif not isinstance(policy, str):
        only_here, lent = lent_policy(policy), policy
        if policy_config:
            raise ConfigError("has no effect on an object; it has its options already", key="policy_config")

    # Arguments are options of the run, keys of the job, or else options of the environment.
    environment, environment_args = given.pop("environment"), given.pop("environment_args", None) or {}
    of_run = {option.name for option in fields(RunOptions)}
    of_job = {"name", "variations", "language_instruction", "conditions"}
    own = {name: value for name, value in given.items() if name not in of_run | of_job}
    arguments = {"environment": environment, **environment_args, **own}
    block: dict[str, Any] = {"name": str(environment).replace("/", "-")}
    block |= {name: value for name, value in given.items() if name in of_job - of_run and value is not None}
    if "conditions" in block:
        block["conditions"] = str(Path(block["conditions"]).absolute())
    block |= {"arena_env_args": arguments, "policy_type": policy_type, "policy_config_dict": policy_config}
    # Path objects as text.
    for key in ("arena_env_args", "policy_config_dict"):
        items = block[key].items()
        block[key] = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in items}
    options = {name: value for name, value in given.items() if name in of_run}
    return Asked(block=block, given=options, policy=lent, only_here=only_here)


# The ranks of an evaluation called from Python: this process alone, a process group, or started processes.


@overload
def evaluate(
    jobs: "str | PathLike[str]",
    *,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Unpack[JobFileKeywords],
) -> Results: ...


@overload
def evaluate(
    *,
    environment: str,
    policy: PolicyLike,
    num_episodes: int | None = None,
    num_envs: int | None = None,
    seed: int | None = None,
    policy_config: Mapping[str, Any] | None = None,
    environment_args: Mapping[str, Any] | None = None,
    variations: Mapping[str, Any] | None = None,
    language_instruction: str | None = None,
    enable_cameras: bool = False,
    name: str | None = None,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Unpack[JobKeywords],
) -> Results: ...


def evaluate(
    jobs: "str | PathLike[str] | None" = None,
    *,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Results:
    """Evaluate the jobs of a file, or one policy in one environment, and return the results.

    The tables are those of the command line, byte for byte. Process-wide state stays unchanged: random numbers,
    threads, logging, the working directory. All ranks of an open process group must call this; they share the episodes
    and get equal results.

    Args:
        jobs: The job file; without it ``environment`` and ``policy`` are needed.
        output_dir: The run's directory, missing or empty; by default a temporary one, removed with the results.
        num_ranks: Ranks to start as processes; 1 for this process alone; None for an open process group, if any.
        show_progress: Whether progress is shown on stderr. Nothing is written to stdout.
        options: Options of the command line by name, and with ``environment`` those of that environment and the job;
            see `JobFileKeywords` and `JobKeywords`.

    Returns:
        The results. A job that failed, because of its policy for instance, is in the table.

    Raises:
        ConfigError: For a wrong argument, with the command line's text.
        ArenaError: If the run could not begin or continue: a full disk, ranks that do not find each other.
        KeyboardInterrupt: After Ctrl-C, once the control step is done and the tables are written.
    """
    # Modules that a kept interpreter has imported may have been edited since.
    stop_kept_workers()
    asked = asked_for(jobs, {**options, "output_dir": output_dir}, num_ranks=num_ranks)
    if num_ranks is not None and num_ranks > 1:
        return _on_ranks(asked, num_ranks, shows_progress=show_progress)
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    of_run = run_options(asked, is_guest=True)
    device, is_alone = of_run.device, num_ranks == 1 or size == 1
    with left_alone(), ExitStack() as stack:
        # ``device`` is None for the rank's own choice. A process that already uses a GPU simulates there.
        if is_alone and device is None and torch.cuda.is_initialized():
            device = f"cuda:{torch.cuda.current_device()}"
        variables = {} if is_alone else context.variables_of_group(dist.get_rank(), size)
        own = context.DistributedContext.from_environment(variables, device=device)
        ranks = ranks_of_one(own) if is_alone else stack.enter_context(initialise(own))
        if show_progress:
            set_up_console_logging(own.rank)
        owned = None
        if own.is_rank_zero and not any(asked.given.get(name) is not None for name in _NAME_THE_DIRECTORY):
            owned = tempfile.TemporaryDirectory(prefix="isaaclab_arena_run_")
        chosen = ranks.share_from_rank_zero("directory of the run", owned.name if owned else "")
        of_run = replace(of_run, output_dir=chosen) if chosen else of_run
        request = request_of(asked, of_run, world_size=own.world_size)
        set_up_torch(of_run.torch_threads, deterministic=of_run.deterministic)
        host = RankHost(
            ranks, shows_progress=show_progress, shows_results=False, writes_report=not chosen, listen=watch_as_guest
        )
        with modules_at_rest(asked.policy):
            outcome = run(request, host)
        path = Path(ranks.share_from_rank_zero("directory of the results", str(outcome.output_directory)))
        if not (path / RUN_PLAN_FILE).is_file():
            message = (
                f"rank 0 has written to '{path}', which this rank does not see; name a directory that all ranks share"
            )
            raise ConfigError(message, key="--output_dir")
        results = Results(read(path), path, owned=owned)
        # Rank 0's temporary directory may disappear with its results, so wait until every rank has read them.
        ranks.gather("results", "read")
    if outcome.signal_number is not None:
        # Process-wide state is restored, so the signal has its usual effect in the caller's program.
        signal.raise_signal(outcome.signal_number)
    return results


def _on_ranks(asked: Asked, num_ranks: int, *, shows_progress: bool) -> Results:
    """Run the evaluation runner on ranks in new processes and wait; ConfigError or ArenaError with its reason."""
    options = run_options(asked, is_guest=False)
    owned = None
    named = options.output_dir or options.resume
    if all(asked.given.get(name) is None for name in _NAME_THE_DIRECTORY):
        owned = tempfile.TemporaryDirectory(prefix="isaaclab_arena_run_")
        path = Path(owned.name)
    elif named:
        path = Path(named).absolute()
    else:
        path = make_output_directory(output_dir=None, output_base_dir=options.output_base_dir)
    with tempfile.TemporaryDirectory(prefix="isaaclab_arena_job_") as directory, left_alone():
        if asked.only_here is not None:
            message = (
                f"'{asked.block['policy_type']}' lives in this process alone and cannot be sent to others; name a "
                "class that can be imported, or evaluate on the ranks of a process group, each with its own"
            )
            raise ConfigError(message, key="num_ranks")
        # The ranks run the evaluation runner, on the job file or on one that is written for them.
        arguments = as_arguments(replace(options, split_jobs=options.split_jobs and asked.jobs_file is not None))
        if asked.jobs_file is None:
            job_file = Path(directory, "job.json")
            job_file.write_text(json.dumps({"jobs": [asked.block]}), encoding="utf-8")
            arguments = ["--eval_jobs_config", str(job_file), "--split_jobs", *arguments]
        # Find mistakes here, where their exception reaches the caller.
        request_of(asked, options, world_size=num_ranks)
        if options.output_dir is None and options.resume is None:
            arguments += ["--output_dir", str(path)]
        if context.is_a_rank() or (dist.is_available() and dist.is_initialized()):
            message = "this process is one of several ranks already; leave num_ranks out, and all of them take part"
            raise ConfigError(message, key="num_ranks")
        # Each rank gets a GPU, if this machine has any and the options allow it.
        on_gpus = options.device != "cpu" and selectable_gpu_count() > 0
        launch = ["--gpu_ids", *map(str, range(num_ranks))] if on_gpus else ["--nproc_per_node", str(num_ranks)]
        if options.gpu_ids is not None or options.nproc_per_node is not None:
            raise ConfigError("excludes --gpu_ids and --nproc_per_node, which say the same", key="num_ranks")
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(  # noqa: S603  this program itself
                [sys.executable, "-m", eval_runner.PROGRAM, *launch, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=None if shows_progress else stderr,
                env=context.variables_of_child(sys.path),
            )
            # Forward Ctrl-C, and raise KeyboardInterrupt after the ranks have written their results.
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").strip().splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
        reason = "\n".join(lines[first:]).removeprefix("error: ")[-4_000:]
        if code == 2:
            raise ConfigError(reason)
        if code != 0 and not (path / RESULTS_FILE).is_file():
            raise ArenaError(f"the ranks ended with exit code {code}: {reason}")
        return Results(read(path), path, owned=owned)
