"""openpi's own policy server, in an interpreter of its own, as a policy here."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.observers import Observer, Outcome
from isaaclab_arena.remote.connection import ServerUnreachableError
from tests.fakes import Notebook
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import PiWithoutMemory, conversation, openpi_at, talking
from tests.policy.playing import actions_of

PYTHON = os.environ.get("OPENPI_PYTHON", "")

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="openpi's server is missing: make test-benchmarks installs it"),
]


@contextmanager
def server(kind: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run openpi's server, and give its port and its process."""
    script = str(Path(__file__).with_name("openpi_own_server.py"))
    with subprocess.Popen([PYTHON, script, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def played(port: int, num_envs: int) -> dict[int, torch.Tensor]:
    """Return the actions of four episodes."""
    policy, environment = openpi_at(port), LimbEnvironment(num_envs)
    try:
        policy.check_environment(environment)
        return actions_of(policy, environment, episodes(4))
    finally:
        policy.close()


def test_episodes_are_those_of_the_same_policy_behind_the_server_that_other_tests_ask():
    with talking(conversation(PiWithoutMemory())) as port:
        expected = played(port, 3)
    with server("plays") as (port, _):
        alone, together = played(port, 1), played(port, 3)
    assert alone.keys() == together.keys() == expected.keys() == set(range(4))
    for index, actions in expected.items():
        assert len(actions) > 4
        assert torch.equal(alone[index], together[index])
        assert torch.allclose(together[index], actions, atol=1e-6)


def test_what_it_says_of_itself_is_compared_with_the_job():
    with server("plays") as (port, _):
        policy = openpi_at(port, action_chunk_length=7, server_metadata={"policy": "pi0"})
        with pytest.raises(ConfigError) as caught:
            policy.check_environment(LimbEnvironment(1))
        policy.close()
    assert "server_metadata.policy: " in str(caught.value)
    assert "action_chunk_length: " in str(caught.value)


def test_what_fails_in_its_policy_is_told():
    with server("errs") as (port, _), pytest.raises(PolicyError, match="ValueError: the images"):
        played(port, 1)


def test_one_that_is_killed_in_an_episode_costs_it_and_is_named():
    notebook = Notebook()
    with server("plays") as (port, process):

        class Kills(Observer):
            def on_step(self, environment, transition) -> None:
                process.kill()
                process.wait()

        policy = openpi_at(port, wait_for_server_s=0.5)
        with pytest.raises(ServerUnreachableError, match=str(port)):
            rollout(LimbEnvironment(1), policy, episodes(1), [notebook, Kills()])
        policy.close()
    assert [(each.outcome, each.termination) for each in notebook.records] == [(Outcome.ERROR, "policy_lost")]
