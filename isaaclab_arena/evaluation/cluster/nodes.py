"""The nodes of a run on a cluster: the orders that reach them, and the check that each can carry them out."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.job import contents_of_jobs
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.evaluation.start_up import named_contents
from isaaclab_arena.registry import imported
from isaaclab_arena.storage.contents import Provenance, changes, shown
from isaaclab_arena.storage.run_plan import Attempt

WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """The requirements of a node that runs ranks."""

    program: str  # module whose ``asked_for`` reads the command line
    arguments: tuple[str, ...]  # command line after the program's name
    # Directory of the command; None if the cluster copies the working directory to each node.
    working_directory: str | None
    jobs_hash: str  # of the resolved jobs
    contents: dict[str, str]  # name -> hash or version of what jobs evaluate
    versions: dict[str, str]  # package -> version
    cpus: float  # cores per rank
    gpus: float  # GPUs per rank, or the fraction of one


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """The orders for every process of a run on a cluster."""

    run: str  # name of the run, for people
    needs: NodeNeeds
    config_hash: str  # of the plan's jobs
    output_directory: str
    attempt: Attempt  # the work left
    num_ranks: int  # at most at once
    node_directory: str | None  # on each node; None: the run's own if visible, else a temporary one


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a rank. A rank that died may start again; messages of its earlier lives are refused."""

    rank: int
    number: int = 0  # lives before this one


@dataclass(frozen=True, kw_only=True)
class LifeEnd:
    """The consequences of a rank's end."""

    pieces: int = 0  # open to other ranks again
    was_fruitful: bool = False  # the rank had finished something in that life
    lives_explained: int = 0  # deaths over an episode that is now an error, or a failed job


class RefusedError(ArenaError):
    """A node cannot take part in the run, so a rank has run nothing there."""

    host, node = "", ""  # name of the node, and its id in the cluster


class RankDiedError(Exception):
    """The process of a rank has died, for a reason in one line."""


def needs_of(request: RunRequest, options: ClusterOptions, *, working_directory: str | None) -> NodeNeeds:
    """Return the requirements of a node that runs ranks, as this node meets them."""
    program, *arguments = request.command_line
    return NodeNeeds(
        program=program,
        arguments=tuple(arguments),
        working_directory=working_directory,
        jobs_hash=request.config_hash,
        contents=named_contents(contents_of_jobs(request.jobs)),
        versions=versions(),
        cpus=options.cpus_per_rank,
        gpus=options.gpus_per_rank,
    )


def request_of(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it, after a chdir to the directory of the command."""
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(Problem(f"has no directory {needs.working_directory}; {WAY_OUT}"))
        os.chdir(needs.working_directory)
    return imported(f"{needs.program}:asked_for")(needs.arguments, may_import=True)


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it. `ConfigError` with all differences to the planning node."""
    # Versions come first, because another version may read the jobs differently.
    there, here = Provenance(facts=needs.versions), Provenance(facts=versions())
    told = [
        f"{each.name} is {each.now or 'absent'} instead of {each.before or 'absent'}"
        for each in there.differences(here)
    ]
    if told:
        raise ConfigError(Problem(f"has other versions: {'; '.join(told)}; {WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {WAY_OUT}"))
    found, absent = named_contents(contents_of_jobs(request.jobs)), "not there"
    told = [
        f"{name} is {shown(found.get(name, absent))} instead of {shown(needs.contents.get(name, absent))}"
        for name, _ in changes(needs.contents, found)
    ]
    if told:
        raise ConfigError(Problem(f"has other files: {'; '.join(told)}; {WAY_OUT}"))
    return request


def problem_of_node(needs: NodeNeeds) -> str | None:
    """Return the reason why this node cannot take part, with its name and directory; None if it can."""
    try:
        checked_request(needs)
    except ArenaError as error:
        told = str(error)
        way_out = "" if WAY_OUT in told else f"; {WAY_OUT}"
        return f"node {socket.gethostname()}, in {Path.cwd()}: {told}{way_out}"
    return None
