"""Gymnasium's Ant-v5 as an environment of this package: its own XML, its observation, its reward.

It computes all env slots at once, from the fields of the physics backend. Positions and velocities have Gymnasium's
bits. Three things differ:

- The forward reward follows the torso's place in the state after the step. Gymnasium takes it from the last inner
  evaluation of the integrator; rewards differ by 0.002 in the median.
- Contact forces are those at the beginning of the last physics step of 0.01 s; Gymnasium's are those of the
  integrator's last inner evaluation, close to its end.
- A slot that has finished rests until it is reset.
"""

from collections.abc import Sequence
from pathlib import Path

import gymnasium.envs.mujoco as gymnasium_mujoco
import mujoco
import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.backends import MujocoBackend

ANT_XML = Path(gymnasium_mujoco.__file__).parent / "assets" / "ant.xml"
POSITION_CONDITION = "ant.qpos_noise"
VELOCITY_CONDITION = "ant.qvel_noise"
FRAME_SKIP = 5
TIME_LIMIT_STEPS = 1000
RESET_NOISE_SCALE = 0.1
HEALTHY_Z_M = (0.2, 1.0)
HEALTHY_REWARD = 1.0
CONTROL_COST_WEIGHT = 0.5
CONTACT_COST_WEIGHT = 5e-4


def ant_model() -> mujoco.MjModel:
    """Return Gymnasium's model with a force sensor, without which MuJoCo computes no contact forces of bodies."""
    spec = mujoco.MjSpec.from_file(str(ANT_XML))
    spec.body("torso").add_site(name="torso_site")
    spec.add_sensor(
        name="contact_forces_wanted",
        type=mujoco.mjtSensor.mjSENS_FORCE,
        objtype=mujoco.mjtObj.mjOBJ_SITE,
        objname="torso_site",
    )
    return spec.compile()


class AntEnvironment(Environment):
    """Env slots of Gymnasium's Ant-v5."""

    def __init__(self, *, num_envs: int, num_threads: int = 1) -> None:
        model = ant_model()
        self.backend = MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
        self.num_envs = num_envs
        self.device = self.backend.device
        self.control_dt = FRAME_SKIP * self.backend.physics_dt
        self.max_episode_length = TIME_LIMIT_STEPS
        self.task_description = "run forward"
        self.action_spec = ArraySpec(shape=(model.nu,), low=(-1.0,) * model.nu, high=(1.0,) * model.nu)
        num_observed = model.nq - 2 + model.nv + 6 * (model.nbody - 1)
        self.observation_spec = {"policy": {"ant": ArraySpec(shape=(num_observed,), dtype=torch.float64)}}
        # The physics is on the CPU, where small arrays cost less than small tensors.
        self._qpos, self._qvel = self.backend.qpos.numpy(), self.backend.qvel.numpy()
        self._wrenches = self.backend.live_field("cfrc_ext").numpy()[:, 1:]
        self._length = np.zeros(num_envs, np.int64)
        self._set_running(np.zeros(num_envs, bool))

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw an episode's distance from the model's own pose, and its velocities."""
        model = self.backend.model
        return {
            POSITION_CONDITION: tuple(generator.uniform(-RESET_NOISE_SCALE, RESET_NOISE_SCALE, model.nq).tolist()),
            VELOCITY_CONDITION: tuple((RESET_NOISE_SCALE * generator.standard_normal(model.nv)).tolist()),
        }

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named slots. Shape of ``env_ids``: (n,)."""
        self.backend.reset(env_ids, [self._start_state(condition) for condition in conditions])
        running = self._running.copy()
        running[env_ids.numpy()] = True
        self._set_running(running)
        self._length[env_ids.numpy()] = 0
        return self._observation(self._contact_forces())

    def step(self, action: torch.Tensor) -> Step:
        """Advance every running slot by one control step. Shape of ``action``: (num_envs, 8)."""
        running, x_before = self._running, self._qpos[:, 0].copy()
        self.backend.ctrl.copy_(action)
        self.backend.step(self._moved, FRAME_SKIP)
        self._length += running
        broken = self.backend.diverged.numpy()
        diverged, sound = running & broken, running & ~broken
        healthy = (self._qpos[:, 2] >= HEALTHY_Z_M[0]) & (self._qpos[:, 2] <= HEALTHY_Z_M[1])
        control, forces = self.backend.ctrl.numpy(), self._contact_forces()
        x_velocity = (self._qpos[:, 0] - x_before) / self.control_dt
        reward = x_velocity + HEALTHY_REWARD * healthy - CONTROL_COST_WEIGHT * np.einsum("ni,ni->n", control, control)
        reward -= CONTACT_COST_WEIGHT * np.einsum("nbi,nbi->n", forces, forces)
        terminated = sound & ~healthy
        truncated = sound & healthy & (self._length >= self.max_episode_length)
        over = diverged | terminated | truncated
        if over.any():
            self._set_running(running & ~over)
        return Step(
            observation=self._observation(forces),
            reward=torch.from_numpy(np.where(sound, reward, 0.0)),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            success=None,
            diverged=torch.from_numpy(diverged),
        )

    def state(self) -> StateTree:
        """Return positions and velocities of the ant's joints."""
        joints = {"joint_position": self.backend.qpos.clone(), "joint_velocity": self.backend.qvel.clone()}
        return {"articulation": {"ant": joints}}

    def _set_running(self, running: np.ndarray) -> None:
        self._running, self._moved = running, torch.from_numpy(running)

    def _contact_forces(self) -> np.ndarray:
        return self._wrenches.clip(-1.0, 1.0)

    def _observation(self, contact_forces: np.ndarray) -> Observation:
        observed = np.concatenate((self._qpos[:, 2:], self._qvel, contact_forces.reshape(self.num_envs, -1)), axis=1)
        return {"policy": {"ant": torch.from_numpy(observed)}}

    def _start_state(self, conditions: Conditions) -> StartState:
        names, model = self.backend.names, self.backend.model
        qpos = (model.qpos0 + np.asarray(conditions[POSITION_CONDITION])).tolist()
        qvel = np.asarray(conditions[VELOCITY_CONDITION]).tolist()
        return StartState(
            joint_positions={joint: qpos[part] for joint, part in names.joint_qpos.items()},
            joint_velocities={joint: qvel[part] for joint, part in names.joint_dof.items()},
        )
