"""Tasks with a red and a blue cube: stack them, pick up the one that the instruction names, sort them into bins."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableTask
from isaaclab_arena.environments.catalog import BLUE_CUBE, CUBE
from isaaclab_arena.environments.events import Facts, approach, arm_facts, strayed
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Task, TaskSpec, Verdict
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Metric, draw_uniform
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

COLOURS = ("red", "blue")
CUBES = tuple(
    grasping.object_thing(cube, prefix=colour, called=f"{colour}_cube", observed_as=f"{colour}_cube")
    for colour, cube in zip(COLOURS, (CUBE, BLUE_CUBE), strict=True)
)


class TwoCubesTask(Task):
    """A task with two cubes, ``red`` and ``blue``; conditions and recordings call them ``red_cube``, ``blue_cube``."""

    def __init__(self, embodiment: Embodiment, spec: TaskSpec) -> None:
        # ``spec`` lacks the cubes and the fingers' sensors.
        grasping.refuse_too_wide(CUBE, embodiment.robot)
        fingers = (sensor for colour in COLOURS for sensor in grasping.finger_sensors(embodiment.robot, colour))
        sensors, sizes = (*fingers, *spec.contact_sensors), {**CUBE.sizes(), **spec.sizes}
        super().__init__(replace(spec, things=(*CUBES, *spec.things), contact_sensors=sensors, sizes=sizes))
        self.robot = embodiment.robot
        self.right = embodiment.workspace.on_table((0.42, -0.10, -np.pi), (0.58, -0.07, np.pi))
        self.left = embodiment.workspace.on_table((0.42, 0.07, -np.pi), (0.58, 0.10, np.pi))

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        places = [draw_uniform(generator, *self.right), draw_uniform(generator, *self.left)]
        if generator.uniform() < 0.5:
            places.reverse()
        conditions: dict[str, ConditionValue] = {}
        for cube, (x, y, yaw) in zip(CUBES, places, strict=True):
            conditions |= cube.placed(x, y, yaw)
        return {**conditions, **super().draw_conditions(generator)}


_CUBE_M = 2 * CUBE.half_height
_BESIDE_M = 0.02
_HEIGHT_TOLERANCE_M = 0.006
_TOUCH = "red_touches_blue"


class Stack(TwoCubesTask):
    """Solved when the red cube stands on the blue one, both at rest and no finger on or near it, for 0.5 s.

    Its centre is within 2 cm of straight above the other's. Lost when a cube falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
            name="stack",
            instruction="stack the red cube on the blue cube",
            paraphrases=(
                "please stack the red cube on the blue cube",
                "put the red cube on the blue cube",
                "place the red cube on top of the blue cube",
                "build a tower with the blue cube below and the red cube above",
                "build a tower, blue block below and red block above",
            ),
            time_limit_s=12.0,
            hold_steps=10,
            contact_sensors=(ContactSensor(name=_TOUCH, body="red/body", other="blue/body"),),
            metrics=(Metric(name="final_beside_m", unit="m", better="lower"),),
        )
        super().__init__(embodiment, spec)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        beside = terms.horizontal_distance(red, blue)
        above = red[:, 2] - blue[:, 2]
        on_top = _on_top(backend)
        tcp_distance = grasping.tool_distance(backend, self.robot, "red")
        let_go = self._let_go(backend, tcp_distance)
        stands = on_top & grasping.at_rest(backend, "red") & grasping.at_rest(backend, "blue")
        success = self.held(stands & let_go, running)
        held = grasping.grasped(backend, self.robot, "red", tcp_distance)
        # A cube that is already on top keeps the reward of the grasp, so that a release costs nothing.
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | on_top)
            + 0.4 * (held | on_top) * terms.closeness(beside, half_at=0.1)
            + 0.2 * (stands & let_go)
            + success
        )
        lost = terms.off_the_table(red) | terms.off_the_table(blue)
        metrics = {"final_beside_m": beside, "final_above_m": above}
        return Verdict(reward=reward, success=success, lost=lost, metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        rests = grasping.at_rest(state, "red") & grasping.at_rest(state, "blue")
        return _on_top(state) & rests & self._let_go(state, grasping.tool_distance(state, self.robot, "red"))

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        red, blue = (grasping.GraspFacts(moments, self.robot, CUBE, colour) for colour in ("red", "blue"))
        beside, above = terms.horizontal_distance(red.position, blue.position), red.height_m - blue.height_m
        on_top = _on_top(moments)
        rests = grasping.at_rest(moments, "red") & grasping.at_rest(moments, "blue")
        return red.then(
            red.carried * approach(beside, _BESIDE_M),
            on_top,
            placed=on_top,
            delivered=on_top,
            wrong_object=blue.carried,
            other_m=blue.hand_m,
            wrong_order=(beside < _BESIDE_M) & (above < -_CUBE_M + _HEIGHT_TOLERANCE_M) & moments.touching(_TOUCH),
            off_table=red.off_table | blue.off_table,
            met=on_top & rests & self._let_go(moments, red.hand_m),
            nearly=_on_top(moments, tolerance=2.0),
        )

    def _let_go(self, state: NamedState, tcp_distance: torch.Tensor) -> torch.Tensor:
        """True where no finger is on or near the cubes. Shape: (num_envs,), bool."""
        return ~grasping.touched(state, "red") & ~grasping.touched(state, "blue") & (tcp_distance > 0.05)


def _on_top(state: NamedState, tolerance: float = 1.0) -> torch.Tensor:
    """True where the red cube stands on the blue one, within ``tolerance`` times the limits. Shape: (num_envs,)."""
    red, blue = state.body_position("red/body"), state.body_position("blue/body")
    is_above = terms.horizontal_distance(red, blue) < tolerance * _BESIDE_M
    is_above &= (red[:, 2] - blue[:, 2] - _CUBE_M).abs() < tolerance * _HEIGHT_TOLERANCE_M
    return is_above & state.touching(_TOUCH) & terms.upright(state.body_orientation("blue/body"))


STACK = TableTask(make_task=lambda _, robot: Stack(robot), words="Put one cube on top of another and let go of it.")


LIFT_HEIGHT_M = 0.10

_COLOUR = "goal.colour"


class PickByColour(TwoCubesTask):
    """Solved when the named cube is 0.1 m above its resting height, held between both fingers, for 0.5 s.

    Which cube that is only the instruction says; no observation does. Lost when the other cube is lifted by 5 cm, or
    when a cube falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
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
            hold_steps=10,
            metrics=(Metric(name="final_height_m", unit="m", better="higher"),),
        )
        super().__init__(embodiment, spec)

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        return {**super().draw_conditions(generator), _COLOUR: COLOURS[int(generator.uniform() < 0.5)]}

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
        wrong = other_height >= 0.05
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
        wanted, other = COLOURS[::-1] if self._wants_blue[env_id] else COLOURS
        grasp, wrong = (grasping.GraspFacts(moments, self.robot, CUBE, colour) for colour in (wanted, other))
        return grasp.then(
            grasp.held * terms.progress(grasp.height_m, start=0.0, goal=LIFT_HEIGHT_M),
            taken=grasp.held | wrong.held,
            wrong_object=wrong.held,
            other_m=wrong.hand_m,
            off_table=grasp.off_table | wrong.off_table,
            met=grasp.held & (grasp.height_m >= LIFT_HEIGHT_M),
            nearly=grasp.held & (grasp.height_m >= grasping.NEARLY * LIFT_HEIGHT_M),
        )


PICK_BY_COLOUR = TableTask(
    make_task=lambda _, robot: PickByColour(robot), words="Pick up the one of two cubes that the instruction names."
)


_BIN_OF = {"red": "left_bin", "blue": "right_bin"}
_BIN_OUTSIDE_M = 0.108


class SortTwo(TwoCubesTask):
    """Solved when the red cube rests in the left bin and the blue one in the right, and both are let go, for 0.25 s.

    Left is the robot's left. ``progress`` is the share of the cubes that are where they belong, let go. Lost when a
    cube or a bin falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        on_table = embodiment.workspace.on_table
        left_area = on_table((0.42, 0.27, -0.1), (0.52, 0.30, 0.1))
        right_area = on_table((0.42, -0.30, -0.1), (0.52, -0.27, 0.1))
        spec = TaskSpec(
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
            hold_steps=5,
            things=(
                grasping.bin_thing("left_bin", y=0.28, area=left_area),
                grasping.bin_thing("right_bin", y=-0.28, area=right_area),
            ),
            sizes=grasping.BIN_SIZES,
        )
        super().__init__(embodiment, spec)
        cubes_end, bins_begin = self.left[1][1], left_area[0][1]
        if bins_begin - cubes_end < _BIN_OUTSIDE_M + CUBE.footprint_radius:
            message = f"the table of '{embodiment.robot.name}' is too small for two cubes between two bins"
            raise ConfigError(Problem(message, key="embodiment"))

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        sorted_in = {colour: self._is_sorted(backend, colour) for colour in _BIN_OF}
        success = self.held(sorted_in["red"] & sorted_in["blue"], running)
        earned = {}
        for colour, place in _BIN_OF.items():
            cube, goal = backend.body_position(f"{colour}/body"), backend.body_position(f"{place}/body")
            near = terms.closeness(grasping.tool_distance(backend, self.robot, colour), half_at=0.1)
            held = grasping.grasped(backend, self.robot, colour)
            on_the_way = 0.2 * near + held * (0.2 + 0.4 * terms.closeness(terms.distance(cube, goal), half_at=0.15))
            earned[colour] = torch.where(sorted_in[colour], 1.0, on_the_way)
        things = ("red/body", "blue/body", "left_bin/body", "right_bin/body")
        off = torch.stack([terms.off_the_table(backend.body_position(body)) for body in things])
        reward = 0.5 * (earned["red"] + earned["blue"]) + success
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
        # The share of the way to its bin that a cube is carried.
        bins = [moments.body_position(f"{place}/body") for place in _BIN_OF.values()]
        brought = torch.maximum(
            *(
                grasp.carried * approach(terms.horizontal_distance(grasp.position, place), grasping.BIN_INSIDE_M)
                for grasp, place in zip((red, blue), bins, strict=True)
            )
        )
        come = torch.maximum(approach(red.hand_m, red.reach_m), approach(blue.hand_m, blue.reach_m))
        # A cube in its bin is not the hand's goal, unless both are.
        first = torch.where(red_in & ~blue_in, blue.hand_m, red.hand_m)
        second = torch.where(blue_in & ~red_in, red.hand_m, blue.hand_m)
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
            met=self._is_sorted(moments, "red") & self._is_sorted(moments, "blue"),
            nearly=red_in & blue_in,
        )

    def _is_inside(self, state: NamedState, colour: str, place: str) -> torch.Tensor:
        return grasping.inside_bin(state, f"{colour}/body", f"{place}/body", half_height=CUBE.half_height)

    def _is_sorted(self, state: NamedState, colour: str) -> torch.Tensor:
        """True where a cube rests in its bin, and no finger is on or near it."""
        inside = self._is_inside(state, colour, _BIN_OF[colour])
        let_go = ~grasping.touched(state, colour) & (grasping.tool_distance(state, self.robot, colour) > 0.06)
        return inside & grasping.at_rest(state, colour) & let_go


SORT_TWO = TableTask(make_task=lambda _, robot: SortTwo(robot), words="Sort two cubes into two bins, by their colour.")
