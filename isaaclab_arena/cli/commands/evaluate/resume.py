"""``isaaclab-arena resume``: go on with the run in a directory, with the command that it was started with."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.cli.command_table import COMMANDS, MAINS
from isaaclab_arena.distributed.context import is_a_rank
from isaaclab_arena.distributed.launching.launch_options import without_launch_options, without_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.resume_command import resuming_command
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.run.run_plan import RunPlan, plan_copy_path, read_run_plan
from isaaclab_arena.training.settings.run_directory import SETTINGS, settings_of

_RUNNERS = {COMMANDS[name].module: name for name in ("run", "policy")}
_NAMES_OF_DIRECTORY = ("output_dir", "experiment_output_directory")
_CUDA_DEVICE = re.compile(r"cuda:(\d+)")


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Go on with the run in a directory, with the command that it was started with: DIRECTORY [OPTIONS].

    OPTIONS are more options of that command, such as --retry_errors. As many ranks are started as the run had, unless
    --nproc_per_node or --gpu_ids says otherwise.
    """

    directory: tyro.conf.Positional[Path]
    """The directory of an evaluation, which holds run.json, or of a training, which holds params/train.yaml."""


def main(argv: Sequence[str]) -> int:
    """Go on with a run, and return the exit code of its command.

    Raises:
        ConfigError: If the directory holds no run, or it has to be gone on with from another directory.
    """
    options = tyro.cli(ResumeOptions, args=list(argv[:1]), prog="isaaclab-arena resume")
    more = list(argv[1:])
    directory = options.directory
    if (directory / SETTINGS).is_file():
        return MAINS.get("train")([*_ranks(_devices_of_training(directory), more), "--resume", str(directory), *more])
    if not (directory / RUN_PLAN_FILE).is_file() and not plan_copy_path(directory).is_file():
        message = f"holds no run: neither {RUN_PLAN_FILE} nor {SETTINGS}"
        raise ConfigError(Problem(message, file=str(directory)))
    plan = read_run_plan(directory)
    program, *typed = plan.command_line or ("",)
    if program not in _RUNNERS:
        message = f"was started by {program or 'a program of its own'}, which has to go on with it"
        raise ConfigError(Problem(message, file=str(directory), key="command_line"))
    _refuse_elsewhere(plan, directory)
    command = resuming_command(without_options(typed, _NAMES_OF_DIRECTORY), str(directory.absolute()))
    return MAINS.get(_RUNNERS[program])([*_ranks(plan.devices, more), *command, *more])


def _refuse_elsewhere(plan: RunPlan, directory: Path) -> None:
    """Refuse to go on where the paths of the command, and the classes that it names, would be others."""
    typed_in = plan.working_directory
    if typed_in is not None and Path(typed_in).is_dir() and Path(typed_in).resolve() != Path.cwd():
        message = f"was started in '{typed_in}', from where its paths count: change to that directory first"
        raise ConfigError(Problem(message, file=str(directory)))


def _ranks(devices: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return the options that start as many ranks as there were, none where somebody has said or started them.

    Args:
        devices: Device of each rank of the run.
        more: Options that were typed now.

    Raises:
        ConfigError: If the ranks were not those of one machine.
    """
    if len(devices) < 2 or is_a_rank() or without_launch_options(more) != list(more):
        return []
    if set(devices) == {"cpu"}:
        return ["--nproc_per_node", str(len(devices))]
    indices = [match[1] for device in devices if (match := _CUDA_DEVICE.fullmatch(device))]
    if len(set(indices)) != len(devices):
        message = (
            f"the run had {len(devices)} ranks that one machine's GPUs do not explain; "
            "say what to use with --gpu_ids, or use its launcher again"
        )
        raise ConfigError(message)
    return ["--gpu_ids", ",".join(indices)]


def _devices_of_training(directory: Path) -> list[str]:
    devices = settings_of(directory).get("devices")
    return list(map(str, devices)) if isinstance(devices, list) else []
