"""Push an open drawer shut."""

from dataclasses import replace

import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.articulated_task import MovedByHandTask
from isaaclab_arena.environments.tasks.open_drawer import DRAWER
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

SHUT_M = 0.01
HOLD_STEPS = 5

_TOUCH = "hand_touches_drawer"
_FASTEST_PUSH_M = 0.05
_SHARE_BY_HAND = 0.5
_LOW, _HIGH = (0.72, -0.10), (0.76, 0.10)
_CABINET = SceneObject(prefix="cabinet", asset="objects/cabinet.xml", position=(0.74, 0.0, 0.0), area=(_LOW, _HIGH))
_DRAWER = replace(DRAWER, starts=(0.12, 0.18))
_SPEC = TaskSpec(
    name="close_drawer",
    instruction="close the drawer",
    paraphrases=(
        "please close the drawer",
        "push the drawer shut",
        "push the drawer back until it is shut",
        "the cabinet should not be left with its drawer out",
        "slide everything back inside that cabinet",
    ),
    time_limit_s=10.0,
    hold_steps=HOLD_STEPS,
    sites={"handle": "cabinet/handle", "closed_handle": "cabinet/closed_handle"},
)


class CloseDrawer(MovedByHandTask):
    """Solved when the drawer has been shut, to 1 cm, for 0.25 s, at least half of its way pushed by the hand.

    Way that the drawer makes without the hand on it, or faster than a hand pushes (1 m/s), is not pushed.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        touch = ContactSensor(name=_TOUCH, body=embodiment.robot.palm_body, other="cabinet/drawer")
        super().__init__(replace(_SPEC, contact_sensors=(touch,)), _CABINET, _DRAWER, embodiment.robot)

    def attach(self, backend: Backend) -> None:
        """Create the counters, and the initial opening of each drawer [m]."""
        super().attach(backend)
        self.first_m = torch.zeros_like(self.position)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Reset the state of env slots (n,), int64."""
        super().begin(backend, env_ids)
        self.first_m[env_ids] = self.position[env_ids]

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        """Judge by the drawer's opening and by the part of its way that the hand pushed."""
        opening = backend.joint_position(self.joint)[:, 0]
        self.count_way(opening, running, backend.touching(_TOUCH), sign=-1, fastest=_FASTEST_PUSH_M)
        success = self.held((opening <= SHUT_M) & (self.by_hand >= _SHARE_BY_HAND * self.first_m), running)
        reward = (
            0.3 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.7 * (self.by_hand / self.first_m.clamp(min=SHUT_M)).clamp(max=1.0)
            + success
        )
        metrics = {"final_opening_m": opening, "pushed_m": self.by_hand}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        """True where the drawer is shut."""
        del env_ids
        return state.joint_position(self.joint)[:, 0] <= SHUT_M

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return the hand's facts with the drawer."""
        del env_id
        opening = moments.joint_position(self.joint)[:, 0]
        first = float(opening[0])
        share = terms.progress(opening, start=first, goal=SHUT_M)
        nearly = (first - 2 * SHUT_M) / (first - SHUT_M)
        touched = moments.touching(_TOUCH)
        return self.moved_facts(moments, touched=touched, share=share, met=opening <= SHUT_M, nearly=nearly)


CLOSE_DRAWER = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: CloseDrawer(embodiment))
