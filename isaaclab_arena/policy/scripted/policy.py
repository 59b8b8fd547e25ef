"""The scripted policy, which runs one state machine per env slot over the phases of a task's plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.policy.scripted.motion import (
    HAND_FORWARD,
    ArmMotion,
    Symmetry,
    constant,
    hand_across,
    hand_down,
    horizontal_way,
)
from isaaclab_arena.policy.scripted.phases import PhaseTables
from isaaclab_arena.policy.scripted.scripts import NAMED, SCRIPTS, TOOL, Script
from isaaclab_arena.sim.math.rotation import dot, norm
from isaaclab_arena.sim.privileged import Simulated

_TURNED_RAD = 0.1
_TURNED_ROUGHLY_RAD = 0.4
_AT_FINGERTIPS_M = 0.06
_ARRIVED_M = 0.015
_NEAR_M = 0.04
_CENTRING = 0.1
_BEHIND_COSINE = 0.7


@dataclass(frozen=True)
class ScriptedPolicyCfg:
    """Options of the scripted policy.

    Attributes:
        speed: Factor on the speed of the arm, above 0 and at most 1.
    """

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise ValueError(f"speed must be above 0 and at most 1, got {self.speed}")


class ScriptedPolicy(PolicyBase[ScriptedPolicyCfg]):
    """Follows the plan in `scripts` for the environment's task, and the episode's instruction if the plan needs it.

    It reads the simulation's state and draws no random numbers. The actions of an env slot depend on that env slot
    only, to the last bit.
    """

    name = "scripted"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)
    config_class = ScriptedPolicyCfg

    def __init__(self, config: ScriptedPolicyCfg | None = None) -> None:
        super().__init__(config or ScriptedPolicyCfg())
        self._player: _Player | None = None

    @classmethod
    def check_fit(cls, config: ScriptedPolicyCfg, env: Environment) -> None:
        """Refuse an environment for whose task there is no plan.

        Raises:
            ConfigError: If there is none.
        """
        del config
        simulated = env.unwrapped
        if not isinstance(simulated, Simulated) or simulated.task_name not in SCRIPTS:
            raise ConfigError(_why_no_plan(simulated))

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin the plan anew in the env slots that start an episode.

        Raises:
            PolicyError: If there is no plan for the environment.
        """
        player = self._player_of(env)
        super().start_episodes(env, starts)
        for start in starts:
            player.instruct(start.env_id, start.language_instruction)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Begin the plan anew in the named env slots, or in all."""
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


def _why_no_plan(env: Environment) -> str:
    name = getattr(env, "task_name", None)
    if name is None:
        return "the scripted policy drives an arm in a simulation, and this environment shows none"
    return f"the scripted policy has no plan for '{name}'; it has plans for {', '.join(SCRIPTS)}"


class _Player:
    """Plays a script in all env slots of one environment."""

    def __init__(self, env: Environment, *, speed: float) -> None:
        if not isinstance(env, Simulated) or env.task_name not in SCRIPTS:
            raise PolicyError(_why_no_plan(env))
        self.env = env
        self.backend = env.backend
        self.script: Script = SCRIPTS[env.task_name](env.sizes)
        self.motion = ArmMotion(env.robot, env.backend)
        self.symmetry = Symmetry.of(env.sizes)
        # An arm that may be unable to reach the hand's orientation must not wait for it.
        self.turned_rad = _TURNED_RAD if env.robot.rotation_weight == 1.0 else _TURNED_ROUGHLY_RAD
        phases = self.script.phases
        grip = (0.0, 0.0, self.script.grip_m)
        self.grip = torch.tensor(grip, dtype=self.backend.qpos.dtype, device=self.backend.device)
        self.slots = torch.arange(env.num_envs, device=self.backend.device)
        self.phase = torch.zeros_like(self.slots)
        self.steps = torch.zeros_like(self.slots)
        self.named = torch.zeros_like(self.slots)
        self.roles = sorted({role for phase in phases for role in (phase.role, phase.toward, phase.carries) if role})
        self.tables = PhaseTables(phases, self.roles, self.backend, speed=speed)
        self.anchors = self._landmarks()
        self.hand = self._hand_goal(self.anchors)

    def restart(self, env_ids: torch.Tensor | slice) -> None:
        self.phase[env_ids] = 0
        self.steps[env_ids] = 0

    def instruct(self, env_id: int, instruction: str) -> None:
        """Set which of the script's candidates an instruction names; the first if it names none."""
        words = instruction.lower().split()
        named = [index for index, role in enumerate(self.script.candidates) if role in words]
        self.named[env_id] = named[0] if named else 0

    def action(self) -> torch.Tensor:
        now = self._landmarks()
        self._start_again_where_dropped(now)
        self._start_again_where_beside(now)
        self._follow(now)
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        self._advance(norm(translation), norm(rotation))
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        targets = self.motion.joint_targets(translation, rotation, self.tables.step_m[self.phase])
        arm = targets if self.env.action_mode_name == "joint_position" else self.motion.as_twist(targets)
        if self.env.robot.gripper_actuator is None:
            return arm
        return torch.cat((arm, self.tables.width_m[self.phase][:, None]), dim=-1)

    def _start_again_where_dropped(self, now: torch.Tensor) -> None:
        tcp = self.motion.tool_position()
        held = now[self.tables.carries[self.phase], self.slots] + self.grip
        away = norm(held - tcp) > _AT_FINGERTIPS_M
        dropped = self.tables.carrying[self.phase] & away
        self.steps = torch.where(dropped, 0, self.steps)
        self.phase = torch.where(dropped, self.tables.retry[self.phase], self.phase)

    def _follow(self, now: torch.Tensor) -> None:
        for index in range(len(self.roles)):
            following = (self.tables.role[self.phase] == index) & self.tables.follows_place[self.phase]
            self.anchors[index] = torch.where(following[:, None], now[index], self.anchors[index])
        turning = self.tables.follows_pose[self.phase]
        self.hand = torch.where(turning[:, None], self._hand_goal(now), self.hand)

    def _advance(self, distance: torch.Tensor, angle: torch.Tensor) -> None:
        tables = self.tables
        there = (distance < tables.tolerance_m[self.phase]) & (angle < self.turned_rad)
        done = there & (self.steps >= tables.min_steps[self.phase]) | (self.steps >= tables.max_steps[self.phase])
        last = self.phase == len(self.script.phases) - 1
        again = last & (self.steps >= tables.max_steps[self.phase])
        self.steps = torch.where((done & ~last) | again, 0, self.steps + 1)
        self.phase = torch.where(again, 0, torch.where(done & ~last, self.phase + 1, self.phase))

    def _goal(self, now: torch.Tensor) -> torch.Tensor:
        tables = self.tables
        followed = tables.follows_place[self.phase]
        role = tables.role[self.phase]
        place = torch.where(followed[:, None], now[role, self.slots], self.anchors[role, self.slots])
        goal = place + tables.offset[self.phase]
        if not tables.any_toward:
            return goal
        way, rest = horizontal_way(place, now[tables.toward[self.phase], self.slots])
        behind = goal + way * tables.along_m[self.phase][:, None]
        pushing = tables.ahead_m[self.phase] != 0
        return torch.where(pushing[:, None], self._ahead(behind, way, rest), behind)

    def _ahead(self, behind: torch.Tensor, way: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """Return the goal of a push: ahead of the tool, and a little back towards behind the landmark."""
        tcp = self.motion.tool_position()
        missing = behind - tcp
        aside = missing - way * dot(missing, way)[:, None]
        level = constant((_CENTRING, _CENTRING, 1.0), tcp)
        step = torch.minimum(self.tables.ahead_m[self.phase], rest)
        arrived = (step > 0) & (rest < _ARRIVED_M)
        return torch.where(arrived[:, None], tcp, tcp + way * step[:, None] + aside * level)

    def _start_again_where_beside(self, now: torch.Tensor) -> None:
        """Restart the push in env slots whose tool is no longer behind the object."""
        tables = self.tables
        if not tables.any_toward:
            return
        pushed = now[tables.role[self.phase], self.slots]
        way, rest = horizontal_way(pushed, now[tables.toward[self.phase], self.slots])
        ahead, _ = horizontal_way(self.motion.tool_position(), pushed)
        beside = (tables.ahead_m[self.phase] > 0) & (dot(way, ahead) < _BEHIND_COSINE) & (rest > _NEAR_M)
        self.steps = torch.where(beside, 0, self.steps)
        self.phase = torch.where(beside, tables.retry[self.phase], self.phase)

    def _hand_goal(self, now: torch.Tensor) -> torch.Tensor:
        if self.script.hand == "forward":
            forward = constant(HAND_FORWARD, self.backend.qpos)
            return forward.expand(self.env.num_envs, 4)
        robot, role = self.env.robot, self.tables.role[self.phase]
        if self.script.hand == "across":
            way, _ = horizontal_way(now[role, self.slots], now[self.tables.toward[self.phase], self.slots])
            return hand_across(way, robot.hand_down, tilted=robot.rotation_weight == 1.0)
        return hand_down(self._orientations()[role, self.slots], self.symmetry, robot.hand_down)

    def _landmarks(self) -> torch.Tensor:
        """Return the positions of the landmarks of all roles. Shape: (num_roles, num_envs, 3)."""
        return torch.stack([self._of_role(role, self._position) for role in self.roles])

    def _orientations(self) -> torch.Tensor:
        """Return their orientations. Shape: (num_roles, num_envs, 4)."""
        return torch.stack([self._of_role(role, self._orientation) for role in self.roles])

    def _of_role(self, role: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        if role == TOOL:
            return read(self.env.robot.tcp_site)
        if role != NAMED:
            return read(self.env.landmarks[role])
        candidates = [read(self.env.landmarks[candidate]) for candidate in self.script.candidates]
        return torch.stack(candidates)[self.named, self.slots]

    def _position(self, name: str) -> torch.Tensor:
        known_site = name in self.backend.names.sites
        return self.backend.site_position(name) if known_site else self.backend.body_position(name)

    def _orientation(self, name: str) -> torch.Tensor:
        if name in self.backend.names.bodies:
            return self.backend.body_orientation(name)
        upright = constant((1.0, 0.0, 0.0, 0.0), self.backend.qpos)
        return upright.expand(self.env.num_envs, 4)
