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
from isaaclab_arena.storage.contents import changes, shown
from isaaclab_arena.storage.provenance import Provenance

WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return what the run is to do, as this node reads it, once it is known to be the same as where it was planned.

    Raises:
        ConfigError: If the node lacks something, or has something else; the message names it.
    """
    here, there = Provenance(facts=needs.versions), Provenance(facts=versions())
    told = [_instead(each.name, each.now or "absent", each.before or "absent") for each in here.differences(there)]
    if told:
        raise ConfigError(Problem(f"has other versions: {'; '.join(told)}; {WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {WAY_OUT}"))
    found = named_contents(contents_of_jobs(request.jobs))
    told = [
        _instead(name, *(shown(each.get(name, "not there")) for each in (found, needs.contents)))
        for name, _ in changes(needs.contents, found)
    ]
    if told:
        raise ConfigError(Problem(f"has other files: {'; '.join(told)}; {WAY_OUT}"))
    return request


def request_of(needs: NodeNeeds) -> RunRequest:
    """Return what the run is to do, as this node reads it; the process goes to where the command was typed.

    Raises:
        ConfigError: If the directory or the job file is not there, or the job file is wrong.
    """
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(Problem(f"has no directory {needs.working_directory}; {WAY_OUT}"))
        os.chdir(needs.working_directory)
    return imported(f"{needs.program}:asked_for")(needs.arguments, may_import=True)


def problem_of_node(needs: NodeNeeds) -> str | None:
    """Return why this node cannot take part, with its name and where it looked; None if it can."""
    try:
        checked_request(needs)
    except ArenaError as error:
        told = str(error)
        way_out = "" if WAY_OUT in told else f"; {WAY_OUT}"
        return f"node {socket.gethostname()}, in {Path.cwd()}: {told}{way_out}"
    return None


def _instead(name: str, there: str, here: str) -> str:
    return f"{name} is {there} instead of {here}"
