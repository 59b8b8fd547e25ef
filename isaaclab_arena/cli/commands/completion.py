"""``isaaclab-arena completion``: print what makes a shell complete commands, options and names."""

import dataclasses
import enum
import importlib
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from isaaclab_arena.cli.main import COMMANDS, commands_of_others
from isaaclab_arena.config.options import option_types
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.training import TASKS


@dataclass(frozen=True, kw_only=True)
class Completable:
    """The words that may follow a command."""

    summary: str
    # By option, without dashes, its choices; empty if it takes any value, such as a path.
    values: Mapping[str, tuple[str, ...]]
    flags: tuple[str, ...]  # options without a value
    words: tuple[str, ...]  # words without an option: names of environments, or choices of an argument


def completable_commands() -> dict[str, Completable]:
    """Return every command by name; of other packages' commands only the name is known."""
    policies, environments = POLICIES.names(), ENVIRONMENTS.names()
    known_values = {"policy_type": policies, "policy": policies, "assignment": [*Assignment]}
    found = {}
    for name, command in COMMANDS.items():
        options = getattr(importlib.import_module(command.module), command.options or "")
        values: dict[str, tuple[str, ...]] = {}
        flags, words = ["help"], []
        hints = option_types(options)
        for field in dataclasses.fields(options):
            hint = hints[field.name]
            if "Positional" in map(str, typing.get_args(hint)):
                words += _choices(hint)
            elif hint is bool:
                flags.append(field.name)
            else:
                values[field.name] = tuple(known_values.get(field.name) or _choices(hint))
        if name in {"policy", "view", "collect"}:
            # Options of environments are not fields of the command's options, but the command accepts them too.
            values |= {"embodiment": tuple(EMBODIMENTS.names()), "object": tuple(OBJECTS.names())}
            words += environments
        elif name == "train":
            words += TASKS.names()
        found[name] = Completable(
            summary=command.summary, values=values, flags=tuple(flags), words=tuple(dict.fromkeys(words))
        )
    for name, command in commands_of_others():
        found[name] = Completable(summary=command.summary, values={}, flags=(), words=())
    return found


def _choices(hint: Any) -> Iterable[str]:
    """Return the values that an annotation allows, none if it allows any."""
    if typing.get_origin(hint) is Literal:
        return map(str, typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    return [value for part in typing.get_args(hint) for value in _choices(part)]


_PROGRAM = "isaaclab-arena"


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print what makes a shell complete commands, options, and the names of environments and policies.

    bash: isaaclab-arena completion bash > ~/.local/share/bash-completion/completions/isaaclab-arena
    zsh: isaaclab-arena completion zsh > ~/.isaaclab-arena.zsh, and source that file in ~/.zshrc
    fish: isaaclab-arena completion fish > ~/.config/fish/completions/isaaclab-arena.fish
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell. Run the command again after you install a package with more names."""


def main(argv: Sequence[str]) -> int:
    """Print the script for one shell."""
    options = tyro.cli(CompletionOptions, args=list(argv), prog=f"{_PROGRAM} completion")
    print(script_for(options.shell, completable_commands()))
    return 0


def script_for(shell: Literal["bash", "zsh", "fish"], commands: Mapping[str, Completable]) -> str:
    """Return the completion script of a shell, for commands by name."""
    lines: list[str] = []
    if shell == "fish":
        for name, follows in commands.items():
            lines.append(
                f"complete -c {_PROGRAM} -n __fish_use_subcommand -x -a {name} -d {shlex.quote(follows.summary)}"
            )
            after = f"complete -c {_PROGRAM} -n '__fish_seen_subcommand_from {name}'"
            lines += [f"{after} -a {_quoted(follows.words)}"] if follows.words else []
            lines += [f"{after} -l {flag}" for flag in follows.flags]
            for option, values in follows.values.items():
                lines.append(f"{after} -l {option} -x -a {_quoted(values)}" if values else f"{after} -l {option} -r")
        return "\n".join(lines)

    if shell == "zsh":
        # zsh reads the completions of bash after these two lines.
        lines += ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
    lines += [
        "_isaaclab_arena() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} candidates=",
        "    local command=${COMP_WORDS[1]}",
        "    if [ $COMP_CWORD -eq 1 ]; then command= previous=; fi",
        "    case $command:$previous:$current in",
        f"        ::*) candidates={_quoted(commands)} ;;",
    ]
    for name, follows in commands.items():
        for option, values in follows.values.items():
            lines.append(f"        {name}:--{option}:*) candidates={_quoted(values)} ;;")
        dashed = (f"--{option}" for option in sorted((*follows.values, *follows.flags)))
        lines.append(f"        {name}:*:-*) candidates={_quoted(dashed)} ;;")
        lines.append(f"        {name}:*) candidates={_quoted(follows.words)} ;;")
    # A value without choices, like any unknown word, is completed as a file name.
    compgen = '    COMPREPLY=($(compgen -W "$candidates" -- "$current"))'
    return "\n".join([*lines, "    esac", compgen, "}", f"complete -o default -F _isaaclab_arena {_PROGRAM}"])


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))
