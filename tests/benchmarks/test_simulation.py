"""Benchmarks of simulation."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from benchmarks.simulation import ant_environment as ant

NUM_STEPS = 120


@pytest.fixture
def gymnasium_ant() -> Iterator[Any]:
    environment = gymnasium.make("Ant-v5", terminate_when_unhealthy=False)
    environment.reset(seed=0)
    yield environment.unwrapped
    environment.close()


def forces_at_last_physics_step(ants: Any, action: np.ndarray) -> np.ndarray:
    """Forces on Gymnasium's ant when the last of an action's five physics steps begins."""
    data = mujoco.MjData(ants.model)
    integration = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    state = np.empty(mujoco.mj_stateSize(ants.model, integration))
    mujoco.mj_getState(ants.model, ants.data, state, integration)
    mujoco.mj_setState(ants.model, data, state, integration)
    data.ctrl[:] = action
    mujoco.mj_step(ants.model, data, nstep=4)
    mujoco.mj_forward(ants.model, data)
    mujoco.mj_rnePostConstraint(ants.model, data)
    return np.clip(data.cfrc_ext[1:].flatten(), -1.0, 1.0)


def start_like(ants: Any, environment: Any) -> list[dict[str, tuple[float, ...]]]:
    generator = np.random.default_rng(3)
    conditions = [environment.draw_conditions(generator) for _ in range(environment.num_envs)]
    qpos = ants.init_qpos + np.asarray(conditions[1][ant.POSITION_CONDITION])
    ants.set_state(qpos, np.asarray(conditions[1][ant.VELOCITY_CONDITION]))
    ants.data.qacc_warmstart[:] = 0.0
    return conditions


def test_a_trajectory_is_gymnasiums_bit_for_bit(gymnasium_ant: Any) -> None:
    environment = ant.AntEnvironment(num_envs=3)
    environment.reset(torch.arange(3), start_like(gymnasium_ant, environment))
    actions = np.random.default_rng(4).uniform(-0.5, 0.5, (NUM_STEPS, 3, 8)).astype(np.float32)
    num_touching = 0
    for action in actions:
        expected_forces = forces_at_last_physics_step(gymnasium_ant, action[1])
        x_before = gymnasium_ant.data.qpos[0]
        theirs, their_reward, _, _, info = gymnasium_ant.step(action[1].astype(np.float64))
        step = environment.step(torch.from_numpy(action))
        ours = step.observation["policy"]["ant"][1].numpy()
        assert np.array_equal(ours[:27], theirs[:27])
        assert np.array_equal(ours[27:], expected_forces)
        # Gymnasium's reward with the torso's place, and the forces, of the same moments as ours.
        forward = (gymnasium_ant.data.qpos[0] - x_before) / gymnasium_ant.dt
        contact = -5e-4 * np.square(expected_forces).sum()
        expected = their_reward - info["reward_forward"] - info["reward_contact"] + forward + contact
        assert float(step.reward[1]) == pytest.approx(expected, abs=1e-12)
        assert forward == pytest.approx(info["reward_forward"], abs=0.1)
        num_touching += bool(expected_forces.any())
    assert num_touching > NUM_STEPS // 4


def test_an_ant_that_falls_ends_where_gymnasiums_does_and_rests(gymnasium_ant: Any) -> None:
    environment = ant.AntEnvironment(num_envs=3)
    conditions = start_like(gymnasium_ant, environment)
    environment.reset(torch.arange(3), conditions)
    high = dict(conditions[1])
    high[ant.POSITION_CONDITION] = (0.0, 0.0, 0.4, *high[ant.POSITION_CONDITION][3:])
    environment.reset(torch.tensor([1]), [high])
    step = environment.step(torch.zeros(3, 8))
    assert step.terminated.tolist() == [False, True, False]
    resting = step.observation["policy"]["ant"][1].clone()
    step = environment.step(torch.ones(3, 8))
    assert torch.equal(step.observation["policy"]["ant"][1], resting)
    assert float(step.reward[1]) == 0.0
    assert not step.terminated.any()
