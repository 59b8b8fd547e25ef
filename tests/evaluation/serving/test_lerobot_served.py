"""A policy of LeRobot for several clients: one process, one call for those that wait together, a memory for each."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.serving import HostedPolicy, HostSession, HostStatistics, PolicyHost
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.policy.lerobot_policy import LeRobotPolicy
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.serving.serving_limbs import limb_job
from tests.policy.lerobot.policies import REMEMBERING, options_for, saved

NUM_STEPS = 7


def lerobot_job(options: dict[str, Any]) -> Job:
    return replace(limb_job(LeRobotPolicy), policy_options=options)


@contextmanager
def hosting(options: dict[str, Any], num_slots: int = 3) -> Iterator[PolicyHost]:
    host = PolicyHost(HostedPolicy(lerobot_job(options), num_slots), max_wait_s=20.0)
    try:
        yield host
    finally:
        host.close()


def shown(number: int, step: int) -> dict[str, dict[str, np.ndarray]]:
    """Observation that a client sends in a step."""
    generator = np.random.default_rng((number, step))
    spec: Any = LimbEnvironment(1).observation_spec
    return {
        group: {
            name: generator.integers(0, 255, term.shape).astype(np.uint8)
            if term.dtype is torch.uint8
            else generator.normal(size=term.shape).astype(np.float32)
            for name, term in terms.items()
        }
        for group, terms in spec.items()
    }


def played(session: HostSession, number: int, meeting: threading.Barrier | None = None) -> list[list[float]]:
    """Return the actions of an episode, in each step of which the clients meet."""
    session.start_episode(Episode(job="limbs", episode_index=number, seed=7), f"go {number}")
    actions = []
    for step in range(NUM_STEPS):
        if meeting is not None:
            meeting.wait()
        actions.append(session.act(shown(number, step)).action.tolist())
    return actions


def episodes(options: dict[str, Any], *, at_once: bool) -> tuple[list, HostStatistics]:
    """Return the actions of three episodes, played by as many clients at once or by one, and what the host did."""
    with hosting(options) as host:
        if not at_once:
            session = host.open()
            return [played(session, number) for number in range(3)], host.statistics()
        sessions, meeting = [host.open() for _ in range(3)], threading.Barrier(3)
        with ThreadPoolExecutor(3) as clients:
            found = list(clients.map(played, sessions, range(3), [meeting] * 3))
        return found, host.statistics()


@pytest.mark.parametrize(("kind", "num_observations"), [("act", 1), ("diffusion", 2)])
def test_clients_that_ask_together_share_calls_and_get_what_each_gets_alone(tmp_path, kind, num_observations):
    options = options_for(saved(tmp_path, kind, n_obs_steps=num_observations))
    alone, _ = episodes(options, at_once=False)
    together, statistics = episodes(options, at_once=True)
    assert together == alone
    assert (statistics.queries, statistics.calls) == (3 * NUM_STEPS, NUM_STEPS)
    assert len({str(actions) for actions in alone}) == 3


@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_policy_that_remembers_does_so_for_each_client(tmp_path, kind):
    options = options_for(saved(tmp_path, kind, **REMEMBERING[kind]))
    alone, _ = episodes(options, at_once=False)
    together, _ = episodes(options, at_once=True)
    assert together == alone
    assert len({str(actions) for actions in alone}) == 3


def test_the_actions_of_a_chunk_are_known_when_its_first_is_played(tmp_path):
    with hosting(options_for(saved(tmp_path))) as host:
        assert host.policy.chunk_length == 3
        session = host.open()
        session.start_episode(Episode(job="limbs", episode_index=0, seed=7))
        first, second = session.act(shown(0, 0)), session.act(shown(0, 1))
    assert first.planned[1].tolist() == second.action.tolist()
    assert (len(first.planned), len(second.planned)) == (3, 2)
    assert not first.looks_next
