"""``isaaclab-arena doctor`` and ``completion``: this machine's parts, tried out, and completion for its shells."""

import enum
import importlib
import json
import os
import platform
import re
import shlex
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
import torch.cuda.nccl
import torch.distributed as dist
import tyro
from rich.table import Table

from isaaclab_arena.cli.main import COMMANDS, commands_of_others, print_json
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.distributed.context import DistributedContext, die_with_parent, take_rank_of_scheduler
from isaaclab_arena.distributed.devices import describe_egl_devices, describe_variables, joined_gpu_ids
from isaaclab_arena.distributed.launch import LaunchOptions, launch_if_asked
from isaaclab_arena.distributed.ranks import choose_backend, gpu_name, initialise
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS
from isaaclab_arena.errors import ArenaError, ConfigError, first_line
from isaaclab_arena.evaluation.process import program, show_results
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import typed_words
from isaaclab_arena.registry import imported
from isaaclab_arena.storage.contents import node
from isaaclab_arena.storage.episode_file import Compression, check_compression

# The parts of this machine, and a trial of each.


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str
    text: str
    present: bool = True  # True if it exists and works
    required: bool = False  # True if evaluations need it

    def __str__(self) -> str:
        mark = "[ok]" if self.present else "[!!]" if self.required else "[--]"
        return f"{mark} {self.subject:<20} {self.text}"


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(LaunchOptions):
    """Show versions, processors, GPUs, ranks and file formats, and try the physics; exit code 1 where a part fails.

    Among several ranks, under torchrun or with --gpu_ids or --nproc_per_node, show what each of them sees.
    """

    json: bool = False
    """Print the findings as JSON."""


def doctor(argv: Sequence[str]) -> int:
    """Examine this machine on every rank, and show the findings on rank 0."""
    options = read_words(DoctorOptions, joined_gpu_ids(argv), program="isaaclab-arena doctor")
    # With several ranks requested, each rank runs this program again, and rank 0 shows all views.
    if (launched := launch_if_asked(options, module="isaaclab_arena.cli.machine", arguments=argv)) is not None:
        return launched
    context = DistributedContext()
    with suppress(ConfigError):
        take_rank_of_scheduler()
        context = DistributedContext.from_environment()
    views: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if context.is_distributed:
            if context.launched_by_torchrun:
                die_with_parent()
            ranks = stack.enter_context(initialise(context))
            # Every rank's view, in rank order.
            own = {
                "rank": context.rank,
                "local_rank": context.local_rank,
                "host": socket.gethostname(),
                "device": str(context.device),
                "reason": context.device_reason,
                "gpu": torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "none",
                # The unique name of the GPU, for the choice of a backend.
                "gpu_key": gpu_name(context.device),
                "variables": describe_variables(),
                "cores": node().cores,
            }
            views = [json.loads(text) for text in ranks.gather("view of the machine", json.dumps(own))]
            if not context.is_rank_zero:
                return 0

        # The findings of this machine, each shown at once.
        findings: list[Finding] = []
        for finding in examine():
            findings.append(finding)
            if not options.json:
                print(plain_text(finding, keep_lines=True), flush=True)
        broken = sum(finding.required and not finding.present for finding in findings)
        if options.json:
            print_json({"works": broken == 0, "findings": findings, "ranks": views})
        else:
            print(f"{broken} needed parts do not work" if broken else "everything that is needed works")
        if views and not options.json:
            # One line per rank, and the backend that the ranks would use.
            table = Table(box=None, pad_edge=False)
            for heading in ("rank", "local rank", "host", "device", "because", "gpu", *views[0]["variables"], "cores"):
                table.add_column(heading, overflow="fold")
            for view in views:
                facts = [view[name] for name in ("rank", "local_rank", "host", "device", "reason", "gpu")]
                table.add_row(*map(str, (*facts, *view["variables"].values(), view["cores"])))
            backend, reason = choose_backend([view["gpu_key"] for view in views])
            told = f"{len(views)} ranks talk over {backend}: {reason}"
            show_results(lambda console: console.print(table, told))
    return 1 if broken else 0


def examine() -> Iterator[Finding]:
    """Yield the findings of this machine, one after the other."""
    yield Finding(subject="python", text=f"{platform.python_version()} on {platform.platform()}")
    for requirement in metadata.requires("isaaclab-arena-mujoco") or []:
        matched = re.match(r"(?P<name>[\w.-]+)(?P<specifiers>[^;]*)", requirement)
        if matched is not None and "extra ==" not in requirement:
            yield package_finding(matched["name"], matched["specifiers"].strip(), required=True)
    for name in ("warp-lang", "hdf5plugin", "transformers", "rsl-rl-lib", "tensordict", "tensorboard", "torchrunx"):
        yield package_finding(name, "", required=False)

    yield Finding(subject="processors", text=f"{os.cpu_count()} cores, {node().cores} of them for this process")
    has_gpu = torch.cuda.is_available()
    if not has_gpu:
        yield Finding(subject="gpu", text="no CUDA device; evaluations run on the CPU", present=False)
    for index in range(torch.cuda.device_count() if has_gpu else 0):
        properties = torch.cuda.get_device_properties(index)
        text = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, GPU-{properties.uuid}"
        yield Finding(subject=f"gpu cuda:{index}", text=text)
        yield warp_finding(torch.device("cuda", index))
    yield _tried("egl", describe_egl_devices, required=False)
    for name, value in describe_variables().items():
        yield Finding(subject=name, text=value)

    # Check that ranks can talk, that files can be written, and that the physics steps.
    if dist.is_available():
        nccl = dist.is_nccl_available()
        text = ".".join(map(str, torch.cuda.nccl.version())) if nccl else "not available; ranks use gloo"
        yield Finding(subject="nccl", text=text, present=nccl)
        yield _tried("gloo", _reduce_alone, required=False)
    else:
        yield Finding(subject="torch.distributed", text="not built into this torch; one process only", present=False)
    yield _tried("ranks", _ranks)
    for compression in Compression:
        yield _tried(
            f"hdf5 {compression.value}",
            lambda chosen=compression: check_compression(chosen) or "available",
            required=False,
        )
    directory = Path.cwd()
    free_gib = shutil.disk_usage(directory).free / 2**30
    yield Finding(subject="free disk", text=f"{free_gib:.1f} GiB in {directory}", present=free_gib >= 1.0)
    yield _tried("physics", _one_step)


def package_finding(name: str, specifiers: str, *, required: bool) -> Finding:
    """Check that a package is installed in a version within `specifiers`, such as ``<5,>=4.0``."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        wanted = f"not installed, needs {specifiers}" if specifiers else "not installed"
        return Finding(subject=name, text=wanted, present=False, required=required)
    for specifier in specifiers.split(","):
        is_too_old = specifier.startswith(">=") and _numbers(version) < _numbers(specifier.removeprefix(">="))
        is_too_new = specifier.startswith("<") and _numbers(version) >= _numbers(specifier.removeprefix("<"))
        if is_too_old or is_too_new:
            return Finding(subject=name, text=f"{version}, needs {specifiers}", present=False, required=required)
    return Finding(subject=name, text=version, required=required)


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # pyright: ignore[reportOptionalSubscript] - the pattern matches anything
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def warp_finding(device: torch.device) -> Finding:
    """Check that Warp simulates and renders on a device."""
    # Warp loads for seconds, so it does so for GPUs only.
    warp_device = "isaaclab_arena.sim.warp_kernels:warp_device"
    return _tried(f"warp {device}", lambda: f"Warp calls it {imported(warp_device)(device).name}", required=False)


def _reduce_alone() -> str:
    if dist.is_initialized():
        return "a process group exists already"
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=0, world_size=1)
        try:
            dist.all_reduce(torch.ones(1))
        finally:
            dist.destroy_process_group()
    return "works"


def _ranks() -> str:
    context = DistributedContext.from_environment()
    who = f"rank {context.rank} of {context.world_size}" if context.is_distributed else "one process"
    return f"{who}, on {context.device} ({context.device_reason})"


def _one_step() -> str:
    builder = ENVIRONMENTS.get("reach")
    environment = builder.build(builder.config_class(), num_envs=1, device=torch.device("cpu"), num_threads=1)
    try:
        conditions = environment.draw_conditions(np.random.default_rng(0))
        environment.reset(torch.tensor([0]), [conditions])
        step = environment.step(torch.zeros(1, *environment.action_spec.shape))
    finally:
        environment.close()
    if bool(step.diverged.any()):
        raise RuntimeError("the first step of 'reach' diverged")
    return "one step of 'reach'"


def _tried(subject: str, attempt: Callable[[], str], *, required: bool = True) -> Finding:
    try:
        return Finding(subject=subject, text=attempt(), required=required)
    except (ArenaError, ImportError, OSError, RuntimeError, ValueError) as error:
        return Finding(subject=subject, text=first_line(error), present=False, required=required)


# The words that a shell completes: commands, options and names.


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
    # The doctor needs none of these, which take a third of its start.
    from isaaclab_arena.config.options import option_types  # noqa: PLC0415
    from isaaclab_arena.evaluation.options import ASSIGNMENTS, AUTO  # noqa: PLC0415
    from isaaclab_arena.policy.catalog import POLICIES  # noqa: PLC0415
    from isaaclab_arena.training import TASKS  # noqa: PLC0415

    policies, environments = POLICIES.names(), ENVIRONMENTS.names()
    known_values = {"policy_type": policies, "policy": policies, "assignment": [*ASSIGNMENTS, AUTO]}
    found = {}
    for name, command in COMMANDS.items():
        options = getattr(importlib.import_module(command.module), command.options or "")
        values: dict[str, tuple[str, ...]] = {}
        flags, words = ["help"], []
        hints = option_types(options)
        for field in fields(options):
            hint = hints[field.name]
            if "Positional" in map(str, get_args(hint)):
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
    if get_origin(hint) is Literal:
        return map(str, get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    return [value for part in get_args(hint) for value in _choices(part)]


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


def completion(argv: Sequence[str]) -> int:
    """Print the script for one shell."""
    options = read_words(CompletionOptions, argv, program=f"{_PROGRAM} completion")
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


if __name__ == "__main__":
    with program() as ended:
        take_rank_of_scheduler()
        ended.code = doctor(typed_words(None))
    raise SystemExit(ended.code)
