"""Build the command that resumes a run: the original one with its launcher, ``--resume`` and the directory."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from isaaclab_arena.distributed.context import DistributedContext, is_a_rank
from isaaclab_arena.distributed.launch_options import without_launch_options
from isaaclab_arena.distributed.process import command_of_parent
from isaaclab_arena.evaluation.options import is_run
from isaaclab_arena.evaluation.plan.planning import RunRequest

_SCRIPT = "isaaclab-arena"


def how_to_go_on(request: RunRequest, context: DistributedContext, output_directory: Path) -> str:
    """Return one line for a person: the exact command that goes on with a run, or which option does.

    Call it before any policy may have changed the working directory, in which the command was typed.

    Args:
        request: What the run was to do.
        context: Who this process is.
        output_directory: The run's directory.
    """
    directory = _shown(output_directory, Path.cwd())
    if not request.command_line:
        return f"go on with --resume {shlex.quote(directory)}"
    program, *arguments = request.command_line
    parent = command_of_parent() if is_a_rank() else None
    typed = typed_command(arguments, own=sys.orig_argv, parent=parent)
    command = (
        command_by_directory(parent or sys.orig_argv, directory)
        if typed is None
        else resuming_command(typed, directory)
    )
    if command is None and is_a_rank():
        return f"go on with the same command and --resume {shlex.quote(directory)}"
    command = command or resuming_command(["python", "-m", program, *arguments], directory)
    several = context.world_size > context.local_world_size
    return f"go on with{', on each machine its own line like' if several else ''}: {shlex.join(command)}"


def typed_command(arguments: Sequence[str], *, own: Sequence[str], parent: Sequence[str] | None) -> list[str] | None:
    """Return the whole command line that somebody has typed, None if nobody knows.

    Args:
        arguments: What this process was given after the program's name.
        own: The command line of this process.
        parent: That of the process that started this one as a rank, None for a process that is none.
    """
    if parent is None:
        found = list(own)
        is_it = found[-len(arguments) :] == list(arguments)
    else:
        found = list(parent)
        # A launcher of ours keeps its own options from the ranks; torchrun's stand before the program's name.
        is_it = without_launch_options(found)[-len(arguments) :] == list(arguments)
    return _without_interpreter(found) if is_it else None


def command_by_directory(typed: Sequence[str], directory: str) -> list[str] | None:
    """Return the command that needs no more than a run's directory, None if another program was typed.

    ``isaaclab-arena quickstart`` and ``isaaclab-arena resume`` give the runner a command line that nobody has typed.

    Args:
        typed: The command line of the process that began the run.
        directory: The run's directory.
    """
    program, *words = _without_interpreter(list(typed))
    if program != _SCRIPT:
        return None
    options = words[2:] if words[:1] == ["resume"] else []
    return [_SCRIPT, "resume", directory, *options]


def resuming_command(command: Sequence[str], directory: str) -> list[str]:
    """Return a command with ``--resume DIRECTORY`` at its end, in place of any ``--resume`` that it has.

    Args:
        command: A whole command line.
        directory: The run's directory, from where the command is typed.
    """
    kept: list[str] = []
    is_value = False
    for position, word in enumerate(command):
        following = command[position + 1] if position + 1 < len(command) else "-"
        if is_value:
            is_value = False
        elif word == "--resume":
            is_value = is_run(following)
        elif not word.startswith("--resume="):
            kept.append(word)
    # A directory without a slash is taken for a run only while its plan can be seen.
    return [*kept, "--resume", directory if "/" in directory else f"./{directory}"]


def _without_interpreter(command: list[str]) -> list[str]:
    """Return the command of a script that pip has installed as it is typed: without Python's own name."""
    is_script = len(command) > 1 and Path(command[1]).name == _SCRIPT
    return [_SCRIPT, *command[2:]] if is_script else command


def _shown(directory: Path, working_directory: Path) -> str:
    return str(directory.relative_to(working_directory) if directory.is_relative_to(working_directory) else directory)
