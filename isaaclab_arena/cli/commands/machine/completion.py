"""``isaaclab-arena completion``: print what makes a shell complete commands, options and names."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from isaaclab_arena.cli.commands.machine.completable import Completable, completable_commands

_PROGRAM = "isaaclab-arena"
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit"
"""zsh reads the completions of bash once it was told to."""


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print what makes a shell complete commands, options, and the names of environments and policies.

    bash: isaaclab-arena completion bash > ~/.local/share/bash-completion/completions/isaaclab-arena
    zsh: isaaclab-arena completion zsh > ~/.isaaclab-arena.zsh, and source that file in ~/.zshrc
    fish: isaaclab-arena completion fish > ~/.config/fish/completions/isaaclab-arena.fish
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell. Print it anew after a package with more names was installed."""


def main(argv: Sequence[str]) -> int:
    """Print the script for one shell."""
    options = tyro.cli(CompletionOptions, args=list(argv), prog=f"{_PROGRAM} completion")
    print(script_for(options.shell, completable_commands()))
    return 0


def script_for(shell: Literal["bash", "zsh", "fish"], commands: Mapping[str, Completable]) -> str:
    """Return the script that a shell reads.

    Args:
        shell: The shell.
        commands: By name, what may follow each command.
    """
    if shell == "fish":
        return "\n".join(_fish(commands))
    bash = "\n".join(_bash(commands))
    return bash if shell == "bash" else f"{_ZSH}\n{bash}"


def _bash(commands: Mapping[str, Completable]) -> Iterator[str]:
    yield "_isaaclab_arena() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} candidates="
    yield "    local command=${COMP_WORDS[1]}"
    yield "    if [ $COMP_CWORD -eq 1 ]; then command= previous=; fi"
    yield "    case $command:$previous:$current in"
    yield f"        ::*) candidates={_quoted(commands)} ;;"
    for name, follows in commands.items():
        for option, values in follows.values.items():
            yield f"        {name}:--{option}:*) candidates={_quoted(values)} ;;"
        yield f"        {name}:*:-*) candidates={_quoted(_dashed(follows))} ;;"
        yield f"        {name}:*) candidates={_quoted(follows.words)} ;;"
    yield "    esac"
    # A value without choices, and whatever else nothing is known of, is completed as a file's name.
    yield '    COMPREPLY=($(compgen -W "$candidates" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _isaaclab_arena {_PROGRAM}"


def _fish(commands: Mapping[str, Completable]) -> Iterator[str]:
    for name, follows in commands.items():
        yield f"complete -c {_PROGRAM} -n __fish_use_subcommand -x -a {name} -d {shlex.quote(follows.summary)}"
        after = f"complete -c {_PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        if follows.words:
            yield f"{after} -a {_quoted(follows.words)}"
        yield from (f"{after} -l {flag}" for flag in follows.flags)
        for option, values in follows.values.items():
            yield f"{after} -l {option} -x -a {_quoted(values)}" if values else f"{after} -l {option} -r"


def _dashed(follows: Completable) -> Iterator[str]:
    yield from (f"--{name}" for name in sorted((*follows.values, *follows.flags)))


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))
