"""Pick up the one of two cubes that the instruction names."""

from collections.abc import Sequence

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Metric
from isaaclab_arena.sim.backend import Backend, NamedState

LIFT_HEIGHT_M = 0.10
WRONG_HEIGHT_M = 0.05
HOLD_STEPS = 10

_COLOUR = "goal.colour"


class PickByColour(grasping.TwoCubesTask):
    """Solved when the named cube is 0.1 m above its resting height, held between both fingers, for 0.5 s.

    Which cube that is only the instruction says; no observation does. Lost when the other cube is lifted by 5 cm, or
    when a cube falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(
            embodiment,
            name="pick_by_colour",
            instruction="pick up the cube of the named colour",
            paraphrases=(
                "please pick up the {colour} cube",
                "pick the {colour} cube up from there",
                "grab the {colour} cube and raise it",
                "lift only the {colour} cube off this table",
                "I would like to have that {colour} block in your gripper",
            ),
            time_limit_s=8.0,
            hold_steps=HOLD_STEPS,
            metrics=(Metric(name="final_height_m", unit="m", better="higher"),),
        )

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        return {**super().draw_conditions(generator), _COLOUR: grasping.COLOURS[int(generator.uniform() < 0.5)]}

    def instruction_for(self, conditions: Conditions) -> str:
        return f"pick up the {conditions[_COLOUR]} cube"

    def paraphrases_for(self, conditions: Conditions) -> Sequence[str]:
        return [said.format(colour=conditions[_COLOUR]) for said in self.spec.paraphrases]

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self._wants_blue = torch.zeros(backend.num_envs, dtype=torch.bool, device=backend.device)

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._wants_blue[env_id] = condition[_COLOUR] == "blue"

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        wanted = torch.where(self._wants_blue[:, None], blue, red)
        other = torch.where(self._wants_blue[:, None], red, blue)
        away = {colour: grasping.tool_distance(backend, self.robot, colour) for colour in ("red", "blue")}
        grips = {colour: grasping.grasped(backend, self.robot, colour, distance) for colour, distance in away.items()}
        held = torch.where(self._wants_blue, grips["blue"], grips["red"])
        distance = torch.where(self._wants_blue, away["blue"], away["red"])
        height, other_height = wanted[:, 2] - CUBE.half_height, other[:, 2] - CUBE.half_height
        success = self.held(held & (height >= LIFT_HEIGHT_M), running)
        raised = held * terms.progress(height, start=0.0, goal=LIFT_HEIGHT_M)
        wrong = other_height >= WRONG_HEIGHT_M
        reward = 0.3 * terms.closeness(distance, half_at=0.1) + 0.2 * held + 0.5 * raised + success
        lost = wrong | terms.off_the_table(red) | terms.off_the_table(blue)
        metrics = {"final_height_m": height, "final_other_height_m": other_height}
        return Verdict(reward=reward, success=success & ~wrong, lost=lost, metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        held_high = [
            grasping.grasped(state, self.robot, colour)
            & (state.body_position(f"{colour}/body")[:, 2] - CUBE.half_height >= LIFT_HEIGHT_M)
            for colour in ("blue", "red")
        ]
        return torch.where(self._wants_blue[env_ids], *held_high)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        wanted, other = grasping.COLOURS[::-1] if self._wants_blue[env_id] else grasping.COLOURS
        grasp, wrong = (grasping.GraspFacts(moments, self.robot, CUBE, colour) for colour in (wanted, other))
        raised = grasp.held * terms.progress(grasp.height_m, start=0.0, goal=LIFT_HEIGHT_M)
        return grasp.then(
            raised,
            taken=grasp.held | wrong.held,
            wrong_object=wrong.held,
            other_m=wrong.hand_m,
            off_table=grasp.off_table | wrong.off_table,
            met=grasp.held & (grasp.height_m >= LIFT_HEIGHT_M),
            nearly=grasp.held & (grasp.height_m >= grasping.NEARLY * LIFT_HEIGHT_M),
        )


PICK_BY_COLOUR = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: PickByColour(embodiment))
