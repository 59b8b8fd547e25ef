"""``isaaclab-arena``: finds the command that was typed and hands it the rest of the line."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from isaaclab_arena.errors import ArenaError, ConfigError, did_you_mean
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.logs import plain_text

# Modules are named, so that a command pays only for what it needs: `list` must not wait for MuJoCo and pandas.
_COMMANDS = {
    "evaluate": ("isaaclab_arena.evaluation.eval_runner", "run the jobs of a job file, show the merged table"),
    "train": ("isaaclab_arena.training.train", "train a policy, and evaluate it while it learns"),
    "collect": ("isaaclab_arena.cli.commands.collect", "record demonstrations of an expert"),
    "merge": ("isaaclab_arena.cli.commands.merge", "build the table of a run again from its files"),
    "export": ("isaaclab_arena.cli.commands.export", "write a run in the format of another system, for its tools"),
    "replay": ("isaaclab_arena.cli.commands.replay", "simulate recorded episodes again, and compare every step"),
    "verify": ("isaaclab_arena.cli.commands.verify", "check a run's files, run a sample of it again, and compare"),
    "recover": ("isaaclab_arena.cli.commands.recover", "bring back a run's plan, run.json, that was lost or damaged"),
    "list": ("isaaclab_arena.cli.commands.listing", "environments, policies, embodiments or objects, or one of them"),
    "view": ("isaaclab_arena.cli.commands.view", "watch a policy in a window, or write a video of it"),
    "validate": ("isaaclab_arena.cli.commands.validate", "check job files without running anything"),
    "doctor": ("isaaclab_arena.cli.commands.doctor", "show what this machine has to offer"),
}
"""By name, the module whose ``main`` is the command, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: What follows ``isaaclab-arena`` on the command line; the process's own arguments by default.

    Returns:
        The exit code: 0 where all went well, 2 for a mistake of the user's, 130 after Ctrl-C, 1 for anything else.
    """
    if argv is None:
        _import_from_here()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name in {"", "-h", "--help"}:
        print(_help())
        return 0 if name else 2
    if name not in _COMMANDS:
        print(f"no command called '{plain_text(name)}'{did_you_mean(name, _COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return _run(_COMMANDS[name][0], arguments[1:])
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 1


def _import_from_here() -> None:
    """Let a job file name a class in the directory where the command was typed, as ``python -m`` does.

    A script that pip has installed begins with its own directory in that place instead. Whoever asks Python not to look
    there, with ``-P`` or PYTHONSAFEPATH, is heard.
    """
    # A directory that was deleted meanwhile holds nothing to import.
    with suppress(OSError):
        here = str(Path.cwd())
        if not sys.flags.safe_path and not {"", here} & set(sys.path):
            sys.path.insert(0, here)


def _run(module: str, arguments: Sequence[str]) -> int:
    try:
        with without_collecting():
            command = importlib.import_module(module).main
        code = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough, as `head` has. Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _help() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in _COMMANDS.items()]
    head = ["usage: isaaclab-arena COMMAND [OPTIONS]", "", "commands:"]
    return "\n".join([*head, *lines, "", "isaaclab-arena COMMAND --help shows a command's options"])
