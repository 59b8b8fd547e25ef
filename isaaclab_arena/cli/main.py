"""``isaaclab-arena``: finds the command that was typed and hands it the rest of the line."""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ArenaError, ConfigError, did_you_mean
from isaaclab_arena.logs import plain_text


@dataclass(frozen=True, kw_only=True)
class _Command:
    entry: str
    summary: str


# Entries are text, so that a command pays only for what it needs: `list` must not wait for MuJoCo and pandas.
_COMMANDS = {
    "evaluate": _Command(
        entry="isaaclab_arena.evaluation.eval_runner:main", summary="run the jobs of a job file, show the merged table"
    ),
    "train": _Command(
        entry="isaaclab_arena.training.train:main", summary="train a policy, and evaluate it while it learns"
    ),
    "collect": _Command(entry="isaaclab_arena.cli.commands.collect:main", summary="record demonstrations of an expert"),
    "merge": _Command(
        entry="isaaclab_arena.cli.commands.merge:main", summary="build the table of a run again from its files"
    ),
    "export": _Command(
        entry="isaaclab_arena.cli.commands.export:main",
        summary="write a run in the format of another system, for its tools",
    ),
    "replay": _Command(
        entry="isaaclab_arena.cli.commands.replay:main",
        summary="simulate recorded episodes again, and compare every step",
    ),
    "verify": _Command(
        entry="isaaclab_arena.cli.commands.verify:main",
        summary="check a run's files, run a sample of it again, and compare",
    ),
    "recover": _Command(
        entry="isaaclab_arena.cli.commands.recover:main",
        summary="bring back a run's plan, run.json, that was lost or damaged",
    ),
    "list": _Command(
        entry="isaaclab_arena.cli.commands.listing:main",
        summary="environments, policies, embodiments or objects, or one of them",
    ),
    "view": _Command(
        entry="isaaclab_arena.cli.commands.view:main", summary="watch a policy in a window, or write a video of it"
    ),
    "validate": _Command(
        entry="isaaclab_arena.cli.commands.validate:main", summary="check job files without running anything"
    ),
    "doctor": _Command(entry="isaaclab_arena.cli.commands.doctor:main", summary="show what this machine has to offer"),
}


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
        return _run(_COMMANDS[name], arguments[1:])
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


def _run(command: _Command, arguments: Sequence[str]) -> int:
    try:
        code = _load(command.entry)(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough, as `head` has. Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _load(entry: str) -> Callable[[Sequence[str]], int]:
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _help() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in _COMMANDS.items()]
    head = ["usage: isaaclab-arena COMMAND [OPTIONS]", "", "commands:"]
    return "\n".join([*head, *lines, "", "isaaclab-arena COMMAND --help shows a command's options"])
