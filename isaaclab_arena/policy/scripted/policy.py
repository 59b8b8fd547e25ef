"""The scripted policy: a state machine per row over the phases of a task's plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import PolicyError, did_you_mean
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.policy_base import PolicyBase
from isaaclab_arena.policy.scripted.motion import HAND_FORWARD, ArmMotion, hand_down
from isaaclab_arena.policy.scripted.scripts import SCRIPTS, Script
from isaaclab_arena.sim.privileged import Simulated
from isaaclab_arena.sim.rotation import norm

_TURNED_RAD = 0.1
_AT_FINGERTIPS_M = 0.06


@dataclass(frozen=True)
class ScriptedPolicyCfg:
    """Options of the scripted policy.

    Attributes:
        speed: Factor on how fast the arm moves, above 0 and at most 1.
    """

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise ValueError(f"speed must be above 0 and at most 1, got {self.speed}")


class ScriptedPolicy(PolicyBase[ScriptedPolicyCfg]):
    """Follows the plan that `scripts` holds for the environment's task, in either action mode.

    It reads the simulation's state, draws no random numbers, and its actions in a row are a function of that row
    alone, to the last bit.
    """

    name = "scripted"
    config_class = ScriptedPolicyCfg

    def __init__(self, config: ScriptedPolicyCfg | None = None) -> None:
        super().__init__(config or ScriptedPolicyCfg())
        self._player: _Player | None = None

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin the plan anew in the rows that start an episode.

        Raises:
            PolicyError: If there is no plan for the environment.
        """
        self._player_of(env)
        super().start_episodes(env, starts)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Begin the plan anew in the named rows, or in all."""
        if self._player is not None:
            self._player.restart(slice(None) if env_ids is None else env_ids.to(self._player.backend.device))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next step of the plan. Shape: (num_envs, action_dim), float32.

        Raises:
            PolicyError: If there is no plan for the environment.
        """
        del observation
        return self._player_of(env).action().to(env.device, torch.float32)

    def _player_of(self, env: Environment) -> "_Player":
        simulated = env.unwrapped
        if self._player is None or self._player.env is not simulated:
            self._player = _Player(simulated, speed=self.config.speed if self.config else 1.0)
        return self._player


class _Player:
    """Plays a script in all rows of one environment."""

    def __init__(self, env: Environment, *, speed: float) -> None:
        if not isinstance(env, Simulated):
            raise PolicyError(f"the scripted policy looks into the simulation, and {type(env).__name__} shows none")
        if env.task_name not in SCRIPTS:
            raise PolicyError(
                f"the scripted policy has no plan for '{env.task_name}'{did_you_mean(env.task_name, SCRIPTS)}"
            )
        self.env = env
        self.backend = env.backend
        self.script: Script = SCRIPTS[env.task_name](env.sizes)
        self.motion = ArmMotion(env.robot, env.backend)
        self.turn = env.sizes.get("object_round", 1.0) == 0.0
        phases = self.script.phases
        self.roles = sorted({phase.role for phase in phases})
        self.role_of = self._table([self.roles.index(phase.role) for phase in phases])
        self.offset = self._table([phase.offset for phase in phases])
        self.width_m = self._table([phase.width_m for phase in phases])
        self.step_m = self._table([phase.step_m for phase in phases]) * speed
        self.tolerance_m = self._table([phase.tolerance_m for phase in phases])
        self.min_steps = self._table([phase.min_steps for phase in phases])
        self.max_steps = self._table([phase.max_steps for phase in phases])
        self.rows = torch.arange(env.num_envs, device=self.backend.device)
        self.phase = torch.zeros_like(self.rows)
        self.steps = torch.zeros_like(self.rows)
        self.anchor = self._landmark(phases[0].role)
        self.hand = self._hand_goal()

    def restart(self, env_ids: torch.Tensor | slice) -> None:
        self.phase[env_ids] = 0
        self.steps[env_ids] = 0

    def action(self) -> torch.Tensor:
        self._start_again_where_dropped()
        self._follow()
        translation, rotation = self.motion.errors(self._goal(), self.hand)
        self._advance(norm(translation), norm(rotation))
        translation, rotation = self.motion.errors(self._goal(), self.hand)
        targets = self.motion.joint_targets(translation, rotation, self.step_m[self.phase])
        arm = targets if self.env.action_mode_name == "joint_position" else self.motion.as_twist(targets)
        return torch.cat((arm, self.width_m[self.phase][:, None]), dim=-1)

    def _start_again_where_dropped(self) -> None:
        carrying = self.script.carrying
        if not carrying:
            return
        tcp = self.backend.site_position(self.env.robot.tcp_site)
        away = norm(self._landmark("object") - tcp) > _AT_FINGERTIPS_M
        self.restart(away & (self.phase >= carrying.start) & (self.phase < carrying.stop))

    def _follow(self) -> None:
        following = (self.phase < self.script.followed)[:, None]
        self.anchor = torch.where(following, self._landmark(self.script.phases[0].role), self.anchor)
        self.hand = torch.where(following, self._hand_goal(), self.hand)

    def _advance(self, distance: torch.Tensor, angle: torch.Tensor) -> None:
        there = (distance < self.tolerance_m[self.phase]) & (angle < _TURNED_RAD)
        done = there & (self.steps >= self.min_steps[self.phase]) | (self.steps >= self.max_steps[self.phase])
        last = self.phase == len(self.script.phases) - 1
        again = last & (self.steps >= self.max_steps[self.phase])
        self.steps = torch.where((done & ~last) | again, 0, self.steps + 1)
        self.phase = torch.where(again, 0, torch.where(done & ~last, self.phase + 1, self.phase))

    def _goal(self) -> torch.Tensor:
        first = self.script.phases[0].role
        places = [self.anchor if role == first else self._landmark(role) for role in self.roles]
        return torch.stack(places)[self.role_of[self.phase], self.rows] + self.offset[self.phase]

    def _hand_goal(self) -> torch.Tensor:
        if self.script.hand == "forward":
            forward = torch.tensor(HAND_FORWARD, dtype=self.backend.qpos.dtype, device=self.backend.device)
            return forward.expand(self.env.num_envs, 4)
        orientation = self.backend.body_orientation(self.env.landmarks[self.script.phases[0].role])
        return hand_down(orientation, turn=self.turn)

    def _landmark(self, role: str) -> torch.Tensor:
        name = self.env.landmarks[role]
        known_site = name in self.backend.names.sites
        return (self.backend.site_position(name) if known_site else self.backend.body_position(name)).clone()

    def _table(self, values: Sequence[object]) -> torch.Tensor:
        table = torch.tensor(values, device=self.backend.device)
        return table.to(self.backend.qpos.dtype) if table.is_floating_point() else table
