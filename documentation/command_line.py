"""The page of all commands and their options, written from the help that the programs print."""

import importlib
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper

PAGE = "reference/command_line.md"
# Programs that have no command of their own, as they are started.
MODULES = ("isaaclab_arena.evaluation.experiment_runner", "isaaclab_arena_gr00t.training.finetune")
WIDTH = 129  # on a wider screen the groups stand beside each other
_COMMAND = re.compile(r"^  ([a-z]+)  +(\S.*)$", re.MULTILINE)
_BOX = re.compile(r"^╭─ (.+?) ─+╮\n(.*?)^╰", re.MULTILINE | re.DOTALL)
# A group of options that is explained: its words, and a line below them.
_EXPLAINED = re.compile(r"(.*?)^│ ─+ +│\n(.*)", re.MULTILINE | re.DOTALL)
_DEFAULT = re.compile(r"\s*\((?:default: (.*)|(required|repeatable))\)$")


@dataclass(frozen=True)
class Option:
    """One option or argument of a command.

    Attributes:
        name: As it is typed, with its values.
        says: What it does.
        default: Its default, ``required`` or ``repeatable``; empty where the help has none.
    """

    name: str
    says: str
    default: str


def commands() -> dict[str, str]:
    """Return what every command of ``isaaclab-arena`` does, by its name."""
    return dict(_COMMAND.findall(help_of()))


def help_of(*words: str) -> str:
    """Return the help of ``isaaclab-arena``, or of one of its commands, one group below the other."""
    return _printed("isaaclab_arena.cli.main", *words, "--help")


@dataclass(frozen=True)
class Group:
    """A group of arguments or options in a help text; `says` is empty where the help explains none."""

    title: str
    says: str
    options: tuple[Option, ...]


def groups_of(text: str) -> Iterator[Group]:
    """Yield the groups of arguments and options in a help text."""
    for title, box in _BOX.findall(text):
        explained = _EXPLAINED.match(box)
        words, entries = explained.groups() if explained else ("", box)
        says = " ".join(line.strip("│").strip() for line in words.splitlines())
        yield Group(title, says, tuple(_options_in(entries)))


def options_of(text: str) -> Iterator[Option]:
    """Yield the arguments and options in a help text."""
    for group in groups_of(text):
        yield from group.options
        # Those that have no line of their own.
        yield from (Option(name, group.says, "") for name in re.findall(r"--\w+", group.says))


def _options_in(box: str) -> Iterator[Option]:
    for entry in re.split(r"^(?=│ \S)", box, flags=re.MULTILINE)[1:]:
        lines = [line.strip("│").strip() for line in entry.splitlines()]
        name, _, rest = re.sub(r"  +", "\0", lines[0]).partition("\0")
        says = " ".join([rest, *lines[1:]]).strip()
        default = _DEFAULT.search(says)
        if name != "-h, --help":
            yield Option(name, _DEFAULT.sub("", says), (default[1] or default[2] or "") if default else "")


def page() -> str:
    """Return the page of all commands."""
    summaries = commands()
    sections = [
        *(_section(f"isaaclab-arena {name}", help_of(name)) for name in summaries),
        *(_section(f"python -m {module}", _printed(module, "--help")) for module in MODULES),
    ]
    introduction = (
        "# Command line\n\nWritten from the programs' own help. Underscores and hyphens in the names of options are "
        "the same. `isaaclab-arena run` is also `python -m isaaclab_arena.evaluation.eval_runner`, and `isaaclab-arena "
        "policy` is `python -m isaaclab_arena.evaluation.policy_runner`.\n"
    )
    listed = "\n".join(f"- [`{name}`](#isaaclab-arena-{name}): {says}" for name, says in summaries.items())
    return "\n".join([introduction, listed, "", *sections])


def _printed(module: str, *words: str) -> str:
    # The frames that `options_of` reads are drawn for outputs in UTF-8 alone.
    printed = TextIOWrapper(BytesIO(), encoding="utf-8")
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with redirect_stdout(printed), suppress(SystemExit):
            importlib.import_module(module).main(list(words))
        printed.seek(0)
        return printed.read()
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def _section(title: str, text: str) -> str:
    described = _BOX.split(text)[0].partition("\n")[2].strip()
    lines = [f"## {title}", "", described]
    for group in groups_of(text):
        if group.says:
            lines += ["", f"**{group.title.capitalize()}.** {_cell(group.says)}"]
        if group.options:
            lines += ["", "| option | what it does | default |", "| --- | --- | --- |"]
        for option in group.options:
            default = f"`{option.default}`" if option.default not in {"", "None"} else ""
            lines.append(f"| `{option.name.replace('{None}|', '')}` | {_cell(option.says)} | {default} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
