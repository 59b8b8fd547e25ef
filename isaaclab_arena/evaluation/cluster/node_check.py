"""Checks that a node of a cluster can have ranks of a run: the same packages, job file, checkpoints and classes."""

import os
import socket
from pathlib import Path

from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.cluster.messages import NodeNeeds
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.provenance.provenance import versions
from isaaclab_arena.evaluation.startup.contents import contents_of_jobs
from isaaclab_arena.evaluation.startup.start_up import named_contents
from isaaclab_arena.registry import imported
from isaaclab_arena.storage.contents import changes
from isaaclab_arena.storage.provenance import Provenance

_WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return what the run is to do, as this node reads it, once it is known to be the same as where it was planned.

    Raises:
        ConfigError: If the node lacks something, or has something else; the message names it.
    """
    problems = [str(each) for each in Provenance(facts=needs.versions).differences(Provenance(facts=versions()))]
    if problems:
        raise ConfigError(Problem(f"has other versions: {'; '.join(problems)}; {_WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {_WAY_OUT}"))
    told = [f"{name} {how}" for name, how in changes(needs.contents, named_contents(contents_of_jobs(request.jobs)))]
    if told:
        raise ConfigError(Problem(f"has other files: {'; '.join(told)}; {_WAY_OUT}"))
    return request


def request_of(needs: NodeNeeds) -> RunRequest:
    """Return what the run is to do, as this node reads it; the process goes to where the command was typed.

    Raises:
        ConfigError: If the directory or the job file is not there, or the job file is wrong.
    """
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(Problem(f"has no directory {needs.working_directory}; {_WAY_OUT}"))
        os.chdir(needs.working_directory)
    return imported(f"{needs.program}:asked_for")(needs.arguments, may_import=True)


def problem_of_node(needs: NodeNeeds) -> str | None:
    """Return why this node cannot take part, with its name; None if it can."""
    try:
        checked_request(needs)
    except ArenaError as error:
        return f"node {socket.gethostname()}: {error}"
    return None
