"""Sort two cubes into two bins, by their colour."""

import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts, approach, arm_facts, strayed
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.sim.backend import Backend, NamedState

HOLD_STEPS = 5

_BIN_OF = {"red": "left_bin", "blue": "right_bin"}
_AWAY_M = 0.06
_BIN_OUTSIDE_M = 0.108
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.27, -0.1), (0.52, 0.30, 0.1)
_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.30, -0.1), (0.52, -0.27, 0.1)


class SortTwo(grasping.TwoCubesTask):
    """Solved when the red cube rests in the left bin and the blue one in the right, and both are let go, for 0.25 s.

    Left is the robot's left. ``progress`` is the share of the cubes that are where they belong, let go. Lost when a
    cube or a bin falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        on_table = embodiment.workspace.on_table
        left_area = on_table(_LEFT_LOW, _LEFT_HIGH)
        super().__init__(
            embodiment,
            name="sort_two",
            instruction="put the red cube into the left bin and the blue cube into the right bin",
            paraphrases=(
                "please put the red cube into the left bin and the blue cube into the right bin",
                "place the red cube in the left bin and the blue cube in the right bin",
                "the red cube goes to the left bin, the blue cube goes to the right bin",
                "sort both cubes by colour: red belongs in the left bin, blue in the right bin",
                "tidy up so that red ends up on your left and blue on your right",
            ),
            time_limit_s=20.0,
            hold_steps=HOLD_STEPS,
            things=(
                grasping.bin_thing("left_bin", y=0.28, area=left_area),
                grasping.bin_thing("right_bin", y=-0.28, area=on_table(_RIGHT_LOW, _RIGHT_HIGH)),
            ),
            sizes=grasping.BIN_SIZES,
        )
        cubes_end, bins_begin = self.left[1][1], left_area[0][1]
        if bins_begin - cubes_end < _BIN_OUTSIDE_M + CUBE.footprint_radius:
            message = f"the table of '{embodiment.robot.name}' is too small for two cubes between two bins"
            raise ConfigError(Problem(message, key="embodiment"))

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        sorted_in = {colour: self._is_sorted(backend, colour) for colour in _BIN_OF}
        success = self.held(sorted_in["red"] & sorted_in["blue"], running)
        things = ("red/body", "blue/body", "left_bin/body", "right_bin/body")
        off = torch.stack([terms.off_the_table(backend.body_position(body)) for body in things])
        reward = 0.5 * (self._reward(backend, "red", sorted_in) + self._reward(backend, "blue", sorted_in)) + success
        done = {f"progress.{colour}_in_{place}": sorted_in[colour].double() for colour, place in _BIN_OF.items()}
        metrics = {"progress": sum(done.values(), torch.zeros_like(reward)) / len(done), **done}
        return Verdict(reward=reward, success=success, lost=off.any(dim=0), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return self._is_sorted(state, "red") & self._is_sorted(state, "blue")

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        red, blue = (grasping.GraspFacts(moments, self.robot, CUBE, colour) for colour in ("red", "blue"))
        red_in, blue_in = (self._is_inside(moments, colour, _BIN_OF[colour]) for colour in ("red", "blue"))
        swapped = self._is_inside(moments, "red", _BIN_OF["blue"]) | self._is_inside(moments, "blue", _BIN_OF["red"])
        one_in = red_in | blue_in
        brought = torch.maximum(self._brought(moments, "red", red), self._brought(moments, "blue", blue))
        come = torch.maximum(approach(red.hand_m, red.reach_m), approach(blue.hand_m, blue.reach_m))
        # A cube in its bin is not the hand's goal, unless both are.
        first = torch.where(red_in & ~blue_in, blue.hand_m, red.hand_m)
        second = torch.where(blue_in & ~red_in, red.hand_m, blue.hand_m)
        bins = (moments.body_position(f"{place}/body") for place in _BIN_OF.values())
        # A release concerns the cube that was carried last.
        steps = torch.arange(len(come))
        carried = [torch.cummax(torch.where(each.carried, steps, -1), dim=0).values for each in (red, blue)]
        return Facts(
            stages=(
                come,
                red.held | blue.held,
                brought,
                one_in,
                one_in & ((red.held & ~red_in) | (blue.held & ~blue_in)),
                one_in * brought,
                red_in & blue_in,
            ),
            arm=arm_facts(moments, self.robot),
            hand_m=torch.minimum(first, second),
            reach_m=red.reach_m,
            taken=red.held | blue.held,
            carried=red.carried | blue.carried,
            delivered=torch.where(carried[0] >= carried[1], red_in | swapped, blue_in | swapped),
            strayed_m=torch.maximum(
                strayed(red.position, red.held | red_in), strayed(blue.position, blue.held | blue_in)
            ),
            wrong_object=swapped,
            off_table=red.off_table | blue.off_table | torch.stack([terms.off_the_table(each) for each in bins]).any(0),
            met=self._is_let_go(moments, "red", red_in) & self._is_let_go(moments, "blue", blue_in),
            nearly=red_in & blue_in,
        )

    def _brought(self, moments: NamedState, colour: str, grasp: grasping.GraspFacts) -> torch.Tensor:
        """Return the share of the way to its bin that a cube is carried. Shape: (num_envs,)."""
        place = moments.body_position(f"{_BIN_OF[colour]}/body")
        return grasp.carried * approach(terms.horizontal_distance(grasp.position, place), grasping.BIN_INSIDE_M)

    def _is_inside(self, state: NamedState, colour: str, place: str) -> torch.Tensor:
        return grasping.inside_bin(state, f"{colour}/body", f"{place}/body", half_height=CUBE.half_height)

    def _is_sorted(self, backend: NamedState, colour: str) -> torch.Tensor:
        return self._is_let_go(backend, colour, self._is_inside(backend, colour, _BIN_OF[colour]))

    def _is_let_go(self, state: NamedState, colour: str, inside: torch.Tensor) -> torch.Tensor:
        """True where a cube inside its bin rests there, and no finger is on or near it."""
        let_go = ~grasping.touched(state, colour) & (grasping.tool_distance(state, self.robot, colour) > _AWAY_M)
        return inside & grasping.at_rest(state, colour) & let_go

    def _reward(self, backend: Backend, colour: str, sorted_in: dict[str, torch.Tensor]) -> torch.Tensor:
        position, place = backend.body_position(f"{colour}/body"), backend.body_position(f"{_BIN_OF[colour]}/body")
        near = terms.closeness(grasping.tool_distance(backend, self.robot, colour), half_at=0.1)
        held = grasping.grasped(backend, self.robot, colour)
        on_the_way = 0.2 * near + held * (0.2 + 0.4 * terms.closeness(terms.distance(position, place), half_at=0.15))
        return torch.where(sorted_in[colour], 1.0, on_the_way)


SORT_TWO = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: SortTwo(embodiment))
