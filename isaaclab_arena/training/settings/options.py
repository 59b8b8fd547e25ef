"""Read the command line of training."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.distributed.context import claimed_rank
from isaaclab_arena.distributed.devices import joined_gpu_ids
from isaaclab_arena.distributed.launch_options import LaunchOptions
from isaaclab_arena.errors import ConfigError, Problem, nearest_option
from isaaclab_arena.nested import without_none
from isaaclab_arena.training.settings.documents import default_document, paths_of
from isaaclab_arena.training.settings.other_trainers import option_names, own_command_line


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LaunchOptions):
    """Train a policy: TASK [options] [agent.learning_rate=3e-4 env.embodiment=panda ...]."""

    config: Path | None = None
    """YAML or JSON file with settings that override the task's own."""
    num_envs: Count | None = None
    """Env slots of each rank."""
    num_envs_total: Count | None = None
    """Env slots of all ranks together, instead of --num_envs."""
    max_iterations: int | None = None
    """Number of iterations; each collects samples and learns from them."""
    seed: int | None = None
    """Seed of the run; each rank adds its number."""
    run_name: str | None = None
    """Suffix of the name of the run's directory."""
    log_root: Path = Path("logs/rsl_rl")
    """Directory of all runs: <log_root>/<experiment>/<time>."""
    run_directory: Path | None = None
    """Exact directory of the run, instead of a dated one; missing or empty, or with --resume that of the run."""
    resume: str | None = None
    """Resume a run: the one in that directory, or without a value the newest of the experiment."""
    load_run: str | None = None
    """With --resume: the newest run of the experiment whose name matches this regular expression."""
    load_checkpoint: str | None = None
    """Begin a new run with the weights of a checkpoint, ours, mjlab's or Isaac Lab's: a file, or a run's directory.
    Beside --resume it names one in that run, as model_100.pt."""
    stop_file: Path | None = None
    """End after the iteration in which this file is there, as after the last one; isaaclab-arena watch writes it."""
    eval_jobs_config: Path | None = None
    """Job file to evaluate with, instead of the task itself; its rsl_rl policies get the checkpoint."""
    device: str | None = None
    """Where to simulate and learn: cpu, cuda or cuda:<index>. By default a GPU of each rank's own if there is one."""
    num_threads: Count | None = None
    """Physics threads of this rank. By default its share of the cores."""
    torch_threads: Count = 1
    """Torch threads of this rank. More than one helps with large networks, on otherwise idle cores."""
    process_group: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend between ranks: nccl; gloo; or auto: NCCL if each has a GPU of its own and it works, Unix sockets if all
    are on the CPU of one machine, else gloo."""
    distributed: bool = False
    """Accepted for other trainers' command lines; the launcher's variables say it."""

    def overrides(self) -> dict[str, Any]:
        """Return the options as a document of a training run."""
        # The path is absolute, because the run may be resumed from another working directory.
        jobs = None if self.eval_jobs_config is None else str(self.eval_jobs_config.absolute())
        return without_none(
            {
                "num_envs": self.num_envs,
                "num_envs_total": self.num_envs_total,
                "agent": {"max_iterations": self.max_iterations, "seed": self.seed, "run_name": self.run_name},
                "evaluation": {"eval_jobs_config": jobs},
            }
        )

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ConfigError: With every problem.
        """
        problems = []
        if self.num_envs is not None and self.num_envs_total is not None:
            problems.append(Problem("give either this or --num_envs", key="--num_envs_total"))
        problems += wrong_numbers(self)
        if (
            self.resume
            and self.run_directory is not None
            and Path(self.resume).resolve() != self.run_directory.resolve()
        ):
            problems.append(
                Problem(f"names '{self.resume}', but --run_directory '{self.run_directory}'", key="--resume")
            )
        if self.stop_file is not None and self.stop_file.exists():
            message = f"'{self.stop_file}' is there already and would end the training at once; remove it"
            problems.append(Problem(message, key="--stop_file"))
        if self.load_run is not None and self.resume is None:
            problems.append(Problem("says which run to go on with; add --resume", key="--load_run"))
        elif self.load_run is not None and self.resume:
            problems.append(Problem("names a run, and --resume a directory; give one of them", key="--load_run"))
        if self.load_checkpoint is not None and self.resume and Path(self.load_checkpoint).exists():
            message = f"'{self.load_checkpoint}' begins a new run, and --resume goes on with one; give one of them"
            problems.append(Problem(message, key="--load_checkpoint"))
        if problems:
            raise ConfigError(problems)


def read_train_options(arguments: Sequence[str], *, program: str) -> tuple[TrainOptions, str | None, list[str]]:
    """Read a command line, including options of mjlab's and Isaac Lab's trainers.

    Args:
        arguments: What was typed after the program's name.
        program: Name for the help.

    Returns:
        The options; the task, None if none is named; and the words with ``=`` that set further values.

    Raises:
        ConfigError: If an option is unknown, if an option of another trainer has no meaning here, or if there is more
            than one task.
        SystemExit: With 2 for a malformed option, with 0 after ``--help``.
    """
    options, rest = tyro.cli(
        TrainOptions,
        prog=program,
        args=joined_gpu_ids(_with_empty_resume(own_command_line(arguments))),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
        console_outputs=claimed_rank() == 0,
    )
    unknown = [_unknown_option(word.partition("=")[0]) for word in rest if word.startswith("-")]
    if unknown:
        # The following words may be values of unknown options, so they are not reported.
        raise ConfigError(unknown)
    overrides = [word for word in rest if "=" in word and not word.startswith("-")]
    tasks = [word for word in rest if "=" not in word and not word.startswith("-")]
    if len(tasks) > 1:
        raise ConfigError(Problem(f"one task is trained at a time, got {' '.join(tasks)}", key="TASK"))
    return options, tasks[0] if tasks else None, overrides


def _unknown_option(name: str) -> Problem:
    own = name.lstrip("-").replace("-", "_")
    settings = [".".join(path) for path in paths_of(default_document()) if path[-1] == own]
    if settings:
        return Problem(f"unknown option; it is set by {' or '.join(f'{path}=...' for path in settings)}", key=name)
    known = [*(field.name for field in fields(TrainOptions)), *option_names()]
    return Problem(f"unknown option{nearest_option(own, known)}", key=name)


def _with_empty_resume(arguments: Sequence[str]) -> list[str]:
    """Give ``--resume`` an empty value if no directory follows it, because a task's name may follow it."""
    completed: list[str] = []
    for position, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[position + 1] if position + 1 < len(arguments) else "-"
        is_directory = os.sep in following or Path(following).is_dir()
        if argument == "--resume" and (following.startswith("-") or not is_directory):
            completed.append("")
    return completed
