"""``isaaclab-arena``: its commands by group; it finds the one that was typed and hands it the rest of the line."""

import ast
import importlib.util
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from isaaclab_arena.distributed.interrupts import INTERRUPTED, leave_on_ctrl_c, raise_on_ctrl_c, report_interruption
from isaaclab_arena.errors import ArenaError, ConfigError, StorageError
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.logs import open_missing_streams, plain_text
from isaaclab_arena.paths import typed_words
from isaaclab_arena.registry import Registry

_HERE = "isaaclab_arena.cli"


@dataclass(frozen=True, kw_only=True)
class Command:
    """The facts of a command that are known before its module is imported."""

    group: str  # heading under which the help shows it
    module: str  # the module with its `main(arguments)`, or with several commands
    # The dataclass of its options in that module, None for a command of another package.
    options: str | None
    summary: str  # its action in a few words
    main: str = "main"  # the function in that module


# Modules are named as text, so that a command imports only its own: `list` must not wait for MuJoCo and pandas.
_GROUPS = {
    "start": {
        "quickstart": (f"{_HERE}.start:quickstart:QuickstartOptions", "write job files to begin with, and run one"),
        "new": (f"{_HERE}.start:new:NewOptions", "write a skeleton of a policy, a task or a robot, with its test"),
    },
    "evaluate": {
        "run": ("isaaclab_arena.evaluation.eval_runner:EvalOptions", "run the jobs of a job file, show their table"),
        "policy": ("isaaclab_arena.evaluation.policy_runner:PolicyOptions", "run one policy in one environment"),
        "resume": (f"{_HERE}.runs:resume:ResumeOptions", "continue the run in a directory"),
        "watch": (f"{_HERE}.watch:WatchOptions", "evaluate the checkpoints of a training as they appear"),
        "validate": (f"{_HERE}.validate:ValidateOptions", "check job files without running anything"),
    },
    "compare": {
        "compare": (f"{_HERE}.compare:CompareOptions", "say which of two policies is better, and how surely"),
        "robustness": (f"{_HERE}.arms:robustness:RobustnessOptions", "say what is left when episodes are changed"),
        "controls": (
            f"{_HERE}.arms:controls:ControlsOptions",
            "say what is reached without looking or listening",
        ),
        "leaderboard": (f"{_HERE}.compare:leaderboard:LeaderboardOptions", "order runs, say which are not told apart"),
        "plan": (f"{_HERE}.compare:plan:PlanOptions", "say how many episodes tell two policies apart"),
    },
    "look": {
        "status": (f"{_HERE}.status:StatusOptions", "show how far a run is, its rates, and what is wrong"),
        "list": (f"{_HERE}.listing:ListOptions", "environments, tasks, policies, robots or objects, or one of them"),
        "report": (f"{_HERE}.derived:report:ReportOptions", "write the page of runs, report.html: figures and films"),
        "view": (f"{_HERE}.view:ViewOptions", "watch a policy in a window, or write a video of it"),
    },
    "files of a run": {
        "merge": (f"{_HERE}.derived:merge:MergeOptions", "build the tables again from the files of the ranks"),
        "verify": (f"{_HERE}.rerun:verify:VerifyOptions", "check the files, run a sample again, and compare"),
        "replay": (f"{_HERE}.rerun:replay:ReplayOptions", "simulate recorded episodes again, compare every step"),
        "film": (f"{_HERE}.rerun:film:FilmOptions", "film episodes of a run that is over, from their recordings"),
        "export": (f"{_HERE}.derived:export:ExportOptions", "write a run in the format of another system"),
        "recover": (f"{_HERE}.runs:recover:RecoverOptions", "bring back a plan, run.json, that was lost or damaged"),
    },
    "train": {
        "train": ("isaaclab_arena.training.train:TrainOptions", "train a policy, and evaluate it while it learns"),
        "collect": (f"{_HERE}.runs:collect:CollectOptions", "record demonstrations of an expert"),
    },
    "machine": {
        "doctor": (f"{_HERE}.machine:doctor:DoctorOptions", "show what this machine has to offer"),
        "completion": (f"{_HERE}.machine:completion:CompletionOptions", "what makes bash, zsh or fish complete a line"),
    },
}
"""By heading and name: ``module:[function:]options`` of a command, and its action. A new command is a line here and a
module beside this one: its help, completion and section in the reference follow from both."""

COMMANDS = {
    name: Command(group=group, module=parts[0], options=parts[-1], summary=summary, main=[*parts[1:-1], "main"][0])
    for group, commands in _GROUPS.items()
    for name, (target, summary) in commands.items()
    for parts in (target.split(":"),)
}
"""The commands of this package by name, in the order of the help."""

MAINS = Registry(
    "command",
    {name: f"{command.module}:{command.main}" for name, command in COMMANDS.items()},
    entry_point_group="isaaclab_arena.commands",
    lookalikes={"eval(uate)?|rollout|start": "run", "show|info": "status", "continue": "resume", "video": "film"},
)
"""Every command's ``main(arguments) -> int`` by name. A main with the keyword ``typed_as`` gets the name that its help
shows. Other packages add theirs as ``module:main``."""


def commands_of_others() -> Iterator[tuple[str, Command]]:
    """Yield the commands that other packages declare; none of their modules is imported."""
    for point in sorted(metadata.entry_points(group=MAINS.entry_point_group), key=lambda each: each.name):
        if point.name in COMMANDS:
            continue
        # The summary is the first line of the module's docstring, or the entry if that cannot be read.
        try:
            spec = importlib.util.find_spec(point.module)
            source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
            line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].removesuffix(".")
        except (ImportError, OSError, SyntaxError, ValueError):
            line = ""
        summary = line[:1].lower() + line[1:].replace("`", "") or point.value
        yield point.name, Command(group="of other packages", module=point.module, options=None, summary=summary)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: this process's arguments); return its exit code: 0, 1, 2 for a mistake, 130."""
    open_missing_streams()
    # A job file may name a class in the working directory, as with ``python -m``. A script that pip installed has its
    # own directory at that place of `sys.path`. Python's ``-P`` or PYTHONSAFEPATH is respected. A deleted working
    # directory has nothing to import.
    if argv is None:
        leave_on_ctrl_c()
        with suppress(OSError):
            here = str(Path.cwd())
            if not sys.flags.safe_path and not {"", here} & set(sys.path):
                sys.path.insert(0, here)

    arguments = typed_words(argv)
    name = arguments[0] if arguments else ""
    # 2 is a mistake of the user's, 130 a Ctrl-C, and 1 any other failure.
    try:
        return _run(name, arguments[1:])
    except KeyboardInterrupt:
        report_interruption()
        return INTERRUPTED
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        # A disk may fail at any moment, even if only a file's name was requested.
        if error.filename is None:
            raise
        print(plain_text(f"cannot use {error.filename}: {error.strerror}"), file=sys.stderr)
        return 1


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; 128 + SIGPIPE if no reader is left for stdout."""
    try:
        if name in {"--version", "-V", "version"}:
            print(f"isaaclab-arena {metadata.version('isaaclab-arena-mujoco')}")
            code = 0
        elif name in {"", "-h", "--help", "help"}:
            groups: dict[str, dict[str, Command]] = {}
            for own_name, command in (*COMMANDS.items(), *commands_of_others()):
                groups.setdefault(command.group, {})[own_name] = command
            width = max(len(own_name) for commands in groups.values() for own_name in commands)
            description = "Evaluate robot policies from one job file, on one process or on many ranks."
            lines = ["usage: isaaclab-arena COMMAND [OPTIONS]", "", description]
            for group, commands in groups.items():
                lines += ["", f"{group}:", *(f"  {each:<{width}}  {told.summary}" for each, told in commands.items())]
            print("\n".join([*lines, "", "isaaclab-arena COMMAND --help shows a command's options"]))
            code = 0 if name else 2
        else:
            with without_collecting():
                run = MAINS.get(name)
            raise_on_ctrl_c()
            takes_name = "typed_as" in inspect.signature(run).parameters
            code = run(arguments, typed_as=f"isaaclab-arena {name}") if takes_name else run(arguments)
        sys.stdout.flush()
    except OSError as error:
        is_unread = isinstance(error, BrokenPipeError)
        if not is_unread:
            # The error is stdout's if stdout does not take an empty line either.
            try:
                print(flush=True)
            except OSError:
                pass
            else:
                raise
        # Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_unread:
            # The reader closed the pipe, like `head` once it has enough lines.
            return 128 + signal.SIGPIPE
        print(f"cannot write to stdout: {error.strerror}", file=sys.stderr)
        return 1
    return code


def kept(write: Callable[[], Path], *, way_out: str | None) -> Path | None:
    """Write an answer into files of its run; return one of them, None (and a hint on stderr) if not writable."""
    try:
        return write()
    except StorageError as error:
        # ``way_out`` is None if the user requested the file, so that its failure is an error.
        if way_out is None:
            raise
        print(plain_text(f"nothing is kept of this: {error}; {way_out}"), file=sys.stderr)
        return None


# The output of commands with ``--json``: one document on stdout; text for people goes to stderr.


def stdout_for_json(*, wanted: bool) -> AbstractContextManager[Any]:
    """Redirect output of a ``with`` block to stderr if a script wants stdout for JSON alone."""
    return redirect_stdout(sys.stderr) if wanted else nullcontext()


def print_json(document: Any) -> None:
    """Print one JSON document, indented: plain values, dataclasses as objects, NaN as null."""
    from isaaclab_arena.storage.atomic import json_text  # noqa: PLC0415  NumPy and pydantic

    print(json_text(document), end="", flush=True)
