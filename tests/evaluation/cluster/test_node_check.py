"""What a node lacks or has otherwise is told before anything starts, with the node's name and where it looked."""

import dataclasses
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.evaluation.cluster.claim_server import NodeNeeds, needs_of, problem_of_node
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.contents import DISTRIBUTION
from tests.end_to_end.launching import ROOT, write_jobs

JOB = {
    "name": "reach",
    "arena_env_args": {"environment": "reach", "action_mode": "ee_delta"},
    "policy_type": "rsl_rl",
    "policy_config_dict": {"checkpoint_path": "trained"},
    "num_episodes": 2,
}
GYM = {
    "name": "pole",
    "arena_env_args": {"environment": "gym:CartPole-v1", "python": "other/python"},
    "policy_type": "random_action",
    "num_episodes": 2,
}


@pytest.fixture
def needs(tmp_path, monkeypatch) -> NodeNeeds:
    """What a run needs of its nodes whose job file, checkpoint and interpreter lie where the command was typed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "models" / "reach", "trained")
    Path("other").mkdir()
    Path("other/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    Path("other/python").chmod(0o755)
    write_jobs(Path("jobs.json"), [JOB, GYM])
    request = asked_for(("--eval_jobs_config", "jobs.json", "--device", "cpu"))
    return needs_of(request, ClusterOptions(cluster="ray"), working_directory=str(tmp_path))


@pytest.fixture
def told(needs) -> Callable[..., str]:
    """Refusal of a node whose needs differ from the written ones."""

    def say(**changes: object) -> str:
        problem = problem_of_node(json_line(dataclasses.replace(needs, **changes)))
        assert problem is not None
        assert problem.startswith(f"node {socket.gethostname()}, in {Path.cwd()}: ")
        assert problem.endswith("on every node, or ship it with the job: ray job submit --working-dir")
        return problem

    return say


def test_a_node_that_has_the_same_has_no_problem(needs):
    assert problem_of_node(json_line(needs)) is None


def test_other_versions_of_this_package_and_of_what_it_simulates_with_are_named(needs, told):
    others = {**needs.versions, DISTRIBUTION: "0.0.9", "mujoco": "3.9"}
    message = told(versions=others)
    assert (
        f"has other versions: {DISTRIBUTION} is {needs.versions[DISTRIBUTION]} instead of 0.0.9; mujoco is " in message
    )
    without = {name: version for name, version in needs.versions.items() if name != "scipy"}
    assert f"scipy is {needs.versions['scipy']} instead of absent; " in told(versions=without)


def test_a_directory_that_a_node_lacks_is_named(told):
    assert "has no directory /of/another/node; " in told(working_directory="/of/another/node")


def test_a_job_file_that_a_node_lacks_or_that_says_something_else_is_named(told):
    Path("jobs.json").rename("away.json")
    assert "jobs.json: there is no such file; " in told()
    write_jobs(Path("jobs.json"), [{**JOB, "num_episodes": 3}, GYM])
    assert "reads other jobs from jobs.json; " in told()


def test_a_checkpoint_that_a_node_lacks_or_that_is_another_one_is_named(told):
    (checkpoint,) = Path("trained").glob("*.pt")
    with checkpoint.open("ab") as file:
        file.write(b"x")
    assert f"has other files: job 'reach': checkpoint_path {checkpoint.name} is " in told()
    Path("trained").rename("away")
    assert "jobs.json: job 'reach': policy_config_dict.checkpoint_path: 'trained' does not exist" in told()


def test_unknown_content_is_no_difference_but_said(needs, caplog):
    (name, *_) = needs.contents
    unknown = dataclasses.replace(needs, contents={**needs.contents, name: UNKNOWN})
    assert problem_of_node(json_line(unknown)) is None
    said = f"node {socket.gethostname()} may have other files: unknown, so not compared: {name}"
    assert [each.message for each in caplog.records if "not compared" in each.message] == [said]


def test_an_interpreter_that_a_node_lacks_is_named(told):
    Path("other/python").unlink()
    assert "job 'pole': arena_env_args.python: 'other/python' is no program that can be run; " in told()


def test_a_class_that_a_node_lacks_is_named(told):
    write_jobs(Path("jobs.json"), [{**JOB, "policy_type": "of_another_node.Policy"}, GYM])
    assert "policy_type: cannot import 'of_another_node' of policy 'of_another_node.Policy'" in told()


"""What makes the interpreters of a node into some that do not have this package, as site customization."""


"""What lets the version beside it be found before that of the directory in which a run was started, as the same."""
