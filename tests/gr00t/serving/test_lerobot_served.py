"""LeRobot itself, in an interpreter of its own, behind a server of this package for other programs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from isaaclab_arena.environments import Episode
from isaaclab_arena.evaluation.serving import HostSession, PolicyHost
from isaaclab_arena.serve import ServeOptions, prepared
from tests.end_to_end.launching import write_jobs
from tests.outsiders import test_lerobot_served
from tests.outsiders.test_lerobot_served import CAMERA, STATE, STATES, job

NUM_STEPS = 8

pytestmark = test_lerobot_served.pytestmark
policy = test_lerobot_served.policy


def played(session: HostSession, number: int) -> list[list[float]]:
    """Return the actions of an episode that shows noise."""
    session.start_episode(Episode(job="lift", episode_index=number, seed=5))
    spec: Any = session.host.policy.environment.observation_spec
    generator, actions = np.random.default_rng(number), []
    for _ in range(NUM_STEPS):
        shown = {
            group: {
                name: generator.integers(0, 256, term.shape).astype(np.uint8)
                if term.dtype is torch.uint8
                else generator.normal(size=term.shape).astype(np.float32)
                for name, term in terms.items()
            }
            for group, terms in spec.items()
        }
        actions.append(session.act(shown).action.tolist())
    return actions


def test_clients_of_a_server_get_together_what_each_gets_alone(policy, tmp_path):
    file = write_jobs(tmp_path / "jobs.json", [job(policy)])
    options = ServeOptions(protocol="vla_eval", max_sessions=3, images=(f"wrist={CAMERA}",), states=tuple(
        f"{name}={name}" for name in STATES[STATE]
    ))  # fmt: skip
    host = PolicyHost(prepared(options, [f"{file}:lift"]).policy, max_wait_s=0.2)
    try:
        sessions = [host.open() for _ in range(3)]
        alone = [played(sessions[0], number) for number in range(3)]
        before = host.statistics()
        with ThreadPoolExecutor(3) as clients:
            together = list(clients.map(played, sessions, range(3)))
        after = host.statistics()
    finally:
        host.close()
    assert together == alone
    assert after["queries"] - before["queries"] == 3 * NUM_STEPS
    assert after["calls"] - before["calls"] < 3 * NUM_STEPS
