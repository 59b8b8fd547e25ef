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
    """Run one command (default: this process's arguments); return its exit code: 0, 1, 2 for a mistake, 130."""
    open_missing_streams()
    if argv is None:
        _import_from_here()
    arguments = typed_words(argv)
    name = arguments[0] if arguments else ""
    # 2 is a mistake of the user's, 130 a Ctrl-C, and 1 any other failure.
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
        # A disk may fail at any moment, even if only a file's name was requested.
        if error.filename is None:
            raise
        print(plain_text(f"cannot use {error.filename}: {error.strerror}"), file=sys.stderr)
        return 1


def _import_from_here() -> None:
    """Let a job file name a class in the working directory, as ``python -m`` does."""
    # A script that pip installed has its own directory at that place. Python's ``-P`` or PYTHONSAFEPATH is respected.
    # A deleted working directory has nothing to import.
    with suppress(OSError):
        here = str(Path.cwd())
        if not sys.flags.safe_path and not {"", here} & set(sys.path):
            sys.path.insert(0, here)


def _told(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; 128 + SIGPIPE if no reader is left for stdout."""
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
            # The reader closed the pipe, like `head` once it has enough lines.
            return 128 + signal.SIGPIPE
        print(f"cannot write to stdout: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _takes_words(stream: TextIO) -> bool:
    """True if a stream still accepts an (empty) line."""
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
