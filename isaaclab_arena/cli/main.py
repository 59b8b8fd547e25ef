"""``isaaclab-arena``: finds the command that was typed and hands it the rest of the line."""

import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from isaaclab_arena.cli.command_table import COMMANDS, MAINS, Command, commands_of_others
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.logs import open_missing_streams, plain_text
from isaaclab_arena.paths import typed_words

_DESCRIPTION = "Evaluate robot policies from one job file, on one process or on many ranks."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: What follows ``isaaclab-arena`` on the command line; the process's own arguments by default.

    Returns:
        The exit code: 0 where all went well, 2 for a mistake of the user's, 130 after Ctrl-C, 1 for anything else.
    """
    open_missing_streams()
    if argv is None:
        _import_from_here()
    arguments = typed_words(argv)
    name = arguments[0] if arguments else ""
    try:
        return _told(partial(_run, name, arguments[1:]))
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 1
    except OSError as error:
        # A disk may fail at any moment, also where only a file's name was asked for.
        if error.filename is None:
            raise
        print(plain_text(f"cannot use {error.filename}: {error.strerror}"), file=sys.stderr)
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


def _told(run: Callable[[], int]) -> int:
    """Run something and return its exit code, that of SIGPIPE where nobody reads what it says any more."""
    try:
        code = run()
        sys.stdout.flush()
    except OSError as error:
        is_unread = isinstance(error, BrokenPipeError)
        if not is_unread and _takes_words(sys.stdout):
            raise
        # Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_unread:
            # The reader closed the pipe, as `head` does once it has enough.
            return 128 + signal.SIGPIPE
        print(f"cannot write to stdout: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _takes_words(stream: TextIO) -> bool:
    """Whether a stream takes one more line, which may be empty."""
    try:
        print(file=stream, flush=True)
    except OSError:
        return False
    return True


def _run(name: str, arguments: Sequence[str]) -> int:
    if name in {"", "-h", "--help"}:
        print(_help())
        return 0 if name else 2
    with without_collecting():
        command = MAINS.get(name)
    takes_name = "typed_as" in inspect.signature(command).parameters
    return command(arguments, typed_as=f"isaaclab-arena {name}") if takes_name else command(arguments)


def _help() -> str:
    groups: dict[str, dict[str, Command]] = {}
    for name, command in (*COMMANDS.items(), *commands_of_others()):
        groups.setdefault(command.group, {})[name] = command
    width = max(len(name) for commands in groups.values() for name in commands)
    lines = ["usage: isaaclab-arena COMMAND [OPTIONS]", "", _DESCRIPTION]
    for group, commands in groups.items():
        lines += ["", f"{group}:", *(f"  {name:<{width}}  {command.summary}" for name, command in commands.items())]
    return "\n".join([*lines, "", "isaaclab-arena COMMAND --help shows a command's options"])
