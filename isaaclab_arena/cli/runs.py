"""``isaaclab-arena resume``, ``recover`` and ``collect``: go on with a run, bring back its plan, record an expert."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import tyro

from isaaclab_arena.cli.main import COMMANDS, MAINS, commands_of_others
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.distributed.context import is_a_rank
from isaaclab_arena.distributed.launch import with_empty_resume, without_launch_options, without_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation import eval_runner, planning, policy_runner
from isaaclab_arena.evaluation.options import is_run
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import layout, ledger, recovery
from isaaclab_arena.training.config import SETTINGS, TRAINING_OF_OTHERS, settings_of

# Go on with the run in a directory, with the command that it was started with.

_RUNNERS = {COMMANDS[name].module: name for name in ("run", "policy")}


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Go on with the run in a directory, with the command that it was started with: DIRECTORY [OPTIONS].

    OPTIONS are more options of that command, such as --retry_errors. As many ranks are started as the run had, unless
    --nproc_per_node or --gpu_ids says otherwise.
    """

    directory: tyro.conf.Positional[Path]
    """Directory of an evaluation (with a run.json) or of a training (with params/train.yaml or training.json)."""


def resume(argv: Sequence[str]) -> int:
    """Resume a run, and return the exit code of its command; ConfigError if that is impossible from here."""
    first, more = list(argv[:1]), list(argv[1:])
    if first and first[0].startswith("-") and first[0] not in {"-h", "--help"}:
        message = f"comes first: isaaclab-arena resume DIRECTORY {' '.join(first)}"
        raise ConfigError(message, key="DIRECTORY")
    options = read_words(ResumeOptions, first, program="isaaclab-arena resume")
    directory = options.directory
    if (directory / SETTINGS).is_file():
        devices = settings_of(directory).get("devices")
        ranks = _ranks(list(map(str, devices)) if isinstance(devices, list) else [], more)
        return MAINS.get("train")([*ranks, "--resume", str(directory), *more])
    file = directory / TRAINING_OF_OTHERS
    if file.is_file():
        # A training of another package's command, such as `isaaclab-arena finetune`.
        settings = read_document(file)
        program, *typed = settings.get("command_line") or ("",) if isinstance(settings, Mapping) else ("",)
        found = [name for name, command in commands_of_others() if command.module == program]
        if not isinstance(settings, Mapping) or not found:
            message = (
                f"names no command that is installed: {program or 'none'}; use the command that began the training"
            )
            raise ConfigError(message, file=str(file), key="command_line")
        _refuse_elsewhere(settings.get("working_directory"), directory)
        world_size = settings.get("world_size", 1)
        if world_size != 1 and not is_a_rank():
            torchrun = f"python -m torch.distributed.run --nproc_per_node={world_size}"
            launch = f"{torchrun} -m isaaclab_arena.cli resume {directory}"
            raise ConfigError(f"had {world_size} ranks; start as many: {launch}", file=str(file), key="world_size")
        kept = without_options([word for word in typed if word != "--resume"], ("output_dir",))
        return MAINS.get(found[0])([*kept, "--output_dir", str(directory), "--resume", *more])

    # The run of an evaluation.
    if not (directory / layout.RUN_PLAN_FILE).is_file() and not (directory / layout.PLAN_COPY_FILE).is_file():
        message = f"holds no run: neither {layout.RUN_PLAN_FILE} nor {SETTINGS} nor {TRAINING_OF_OTHERS}"
        message += ledger.near_run(directory)
        raise ConfigError(message, file=str(directory))
    plan = ledger.read_run_plan(directory)
    program = (plan.command_line or ("",))[0]
    if program not in _RUNNERS:
        way_out = "which has to go on with it: evaluate(..., output_dir=..., resume=True) in Python"
        message = f"was started by {program or 'a program of its own'}, {way_out}"
        raise ConfigError(message, file=str(directory), key="command_line")
    # Relative paths of the command line count from the directory in which it was typed.
    _refuse_elsewhere(plan.working_directory, directory)
    return MAINS.get(_RUNNERS[program])(resuming_words(plan, directory, more))


def resuming_words(plan: ledger.RunPlan, directory: Path, more: Sequence[str]) -> list[str]:
    """Return the words that go on with a run: those that it was started with, its ranks, its directory, and `more`."""
    places = ("output_dir", "experiment_output_directory", "resume")
    typed = with_empty_resume((plan.command_line or ("",))[1:], is_run=is_run)
    # A cluster starts its ranks itself.
    on_cluster = any(word.partition("=")[0] == "--cluster" for word in (*typed, *more))
    ranks = [] if on_cluster else _ranks(plan.devices, more)
    return [*ranks, *without_options(typed, places), "--resume", str(directory.absolute()), *more]


def _refuse_elsewhere(typed_in: str | None, directory: Path) -> None:
    """Refuse to resume from a directory in which the command's paths and classes would differ."""
    if typed_in is not None and Path(typed_in).is_dir() and Path(typed_in).resolve() != Path.cwd():
        message = f"was started in '{typed_in}', from where its paths count: change to that directory first"
        raise ConfigError(message, file=str(directory))


def _ranks(devices: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return the options for the run's number of ranks, none if the user or a launcher chose; ConfigError."""
    if len(devices) < 2 or is_a_rank() or without_launch_options(more) != list(more):
        return []
    if set(devices) == {"cpu"}:
        return ["--nproc_per_node", str(len(devices))]
    # The run's ranks must be those of one machine, with one GPU each.
    indices = [match[1] for device in devices if (match := re.fullmatch(r"cuda:(\d+)", device))]
    if len(set(indices)) != len(devices):
        raise ConfigError(
            f"the run had {len(devices)} ranks that one machine's GPUs do not explain; "
            "say what to use with --gpu_ids, or use its launcher again"
        )
    return ["--gpu_ids", ",".join(indices)]


# Bring back the plan of a run, whose file was lost or damaged.


def rebuilt_plan(output_directory: Path, *, may_import: bool) -> ledger.RunPlan:
    """Rebuild a run's plan if its recordings prove the same configuration; ConfigError or StorageError if not."""
    # ConfigError names the missing part: the first attempt, the job file, recordings, or equal jobs. StorageError:
    # there is no first attempt. ``may_import`` allows jobs with code that is not registered.
    attempt = ledger.read_attempt(output_directory, 1)
    file = str(ledger.attempt_path(output_directory, 1))
    programs = {eval_runner.PROGRAM: eval_runner.asked_for, policy_runner.PROGRAM: policy_runner.asked_for}
    program, *arguments = attempt.command_line or ("",)
    if program not in programs:
        raise ConfigError(f"its command line is of no runner: '{program}'", file=file, key="command_line")
    try:
        request = programs[program](tuple(arguments), may_import=may_import)
    except SystemExit as error:
        message = f"this version does not take its options: {' '.join(arguments)}"
        raise ConfigError(message, file=file, key="command_line") from error
    except ConfigError as error:
        message = (
            f"what it asked for cannot be read any more, from '{Path.cwd()}': {' '.join(arguments)}; put the job file "
            "back as it was, and recover from the directory in which the run was started"
        )
        raise ConfigError([Problem(message, file=file, key="command_line"), *error.problems]) from error

    hashes = recovery.recorded_config_hashes(output_directory)
    if not hashes:
        message = (
            "holds no recording that says with which configuration it was made, so nothing shows that the jobs of "
            f"{request.source_file or 'the command line'} are still those of this run"
        )
        raise ConfigError(message, file=str(output_directory))
    if wrong := [(job, found) for job, found in hashes.items() if found != request.config_hash]:
        message = (
            f"is not what the run began with: its jobs have the hash {request.config_hash} now, the recordings were "
            f"made with {wrong[0][1]} (job '{wrong[0][0]}'); put it back as it was"
        )
        raise ConfigError(message, file=request.source_file or "command line")

    contents = {work.job: work.contents for work in attempt.jobs if work.contents is not None}
    entries = (work for each in ledger.read_attempts(output_directory, attempt.run)[0] for work in each.jobs)
    grown = {work.job: work.num_episodes for work in entries if work.num_episodes is not None}
    jobs = []
    plan = planning.plan_run(request, attempt.world_size, attempt.devices, run_id=attempt.run_id, contents=contents)
    for job in plan.jobs:
        config, state = job.config, attempt.state(job.name)
        config = replace(config, num_episodes=grown.get(job.name, config.num_episodes))
        jobs.append(replace(job, config=config, backend=state.backend, latency=state.latency or job.latency))
    return replace(
        plan,
        created_at=attempt.started_at,
        command_line=attempt.command_line,
        versions=attempt.versions,
        git_revision=attempt.git_revision,
        machine=attempt.machine,
        jobs=tuple(jobs),
    )


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Write run.json again where it was lost or damaged.

    It is taken from the copy that a run keeps beside its attempts, or, where there is none, made anew from the command
    line of the first attempt and its job file.
    """

    output_directory: tyro.conf.Positional[Path]
    """The directory of one run."""
    no_import: bool = False
    """Refuse jobs that name unregistered code."""


def recover(argv: Sequence[str]) -> int:
    """Recover the plan of one run, and show the possible next steps; ConfigError if it cannot be restored."""
    options = read_words(RecoverOptions, argv, program="isaaclab-arena recover")
    rebuild = partial(rebuilt_plan, may_import=not options.no_import)
    plan, is_made_anew = recovery.recover_plan(options.output_directory, rebuild)
    jobs = "1 job" if len(plan.jobs) == 1 else f"{len(plan.jobs)} jobs"
    told = f"{options.output_directory / layout.RUN_PLAN_FILE} is there again, with {jobs}; merge, verify, or resume"
    if is_made_anew:
        told += f"\nmade anew from what was typed: {' '.join(plan.command_line)}; its jobs are those that were recorded"
    print(plain_text(told, keep_lines=True))
    return 0


# Record demonstrations of an expert, with all that policies may be trained on.


@dataclass(frozen=True, kw_only=True)
class ExpertJobOptions(policy_runner.PolicyJobOptions):
    """What to record, besides the environment's name."""

    heading: ClassVar[str] = policy_runner.PolicyJobOptions.heading

    policy_type: str = "scripted"
    """Registered name or dotted class path of the expert."""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(ExpertJobOptions, policy_runner.PolicyOptions):
    """Record an expert's demonstrations, cameras on: OPTIONS ENVIRONMENT [options of environment and policy]."""


def collect(argv: Sequence[str]) -> int:
    """Record a policy in one environment with cameras, by default the scripted expert; return the exit code."""
    # Options are those of ``isaaclab_arena.evaluation.policy_runner``. For several environments at once, run a job file
    # with ``--record_observations all --enable_cameras``.
    return policy_runner.main(with_defaults(argv), options_class=CollectOptions, typed_as="isaaclab-arena collect")


def with_defaults(argv: Sequence[str]) -> list[str]:
    """Return a command line with the defaults of collecting in front, unless it sets them."""
    given = {argument.partition("=")[0].replace("-", "_") for argument in argv if argument.startswith("--")}
    defaults: list[str] = []
    for option, value in (("--policy_type", "scripted"), ("--record_observations", "all")):
        if option.replace("-", "_") not in given:
            defaults += [option, value]
    return ["--enable_cameras", *defaults, *argv]
