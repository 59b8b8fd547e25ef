"""Objects that stand about and have no part in the task: which ones, and where there is room for them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.mdp.conditions import draw_uniform, number, point, upright_pose
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.variations.catalogue import DISTRACTOR_COUNT
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.interfaces.variation import Variation
from isaaclab_arena.sim.model_changes import body_geoms
from isaaclab_arena.sim.scene.scene import ScenePart

_KINDS = ("can", "cylinder", "cube")
_NOT_PLACED_BY_US = ("table", "robot", "distractor")
_LOW, _HIGH = (0.30, -0.42), (0.78, 0.42)
_ROOM_M = 0.05
_TRIES = 200
_FLOOR_M = -0.75
_PARKED_X_M = -1.6


def distractor_kinds(task: Task) -> tuple[ObjectAsset, ...]:
    """Return what may stand about: objects that the task's own words cannot mean."""
    said = set(task.spec.instruction.lower().split()) | set(task.spec.rigid_objects)
    kinds = [OBJECTS.get(name) for name in _KINDS]
    return tuple(kind for kind in kinds if not said & {kind.name, *kind.words.lower().split()})


def most_distractors(variations: Sequence[Variation]) -> int:
    """Return how many distractors an environment must hold ready."""
    for variation in variations:
        if variation.key == DISTRACTOR_COUNT:
            return round(max(variation.sampler.numbers))
    return 0


@dataclass(frozen=True, kw_only=True)
class Distractors:
    """The distractors that an environment holds ready; those not in use stand on the floor behind the robot.

    Attributes:
        things: What they are, in order.
    """

    things: tuple[ObjectAsset, ...]

    @classmethod
    def ready(cls, task: Task, count: int) -> "Distractors":
        """Return as many as are asked for, of as many kinds as there are."""
        kinds = distractor_kinds(task)
        return cls(things=tuple(kinds[index % len(kinds)] for index in range(count)))

    @property
    def names(self) -> tuple[str, ...]:
        """Their names among conditions and in recordings."""
        return tuple(f"distractor_{index + 1}" for index in range(len(self.things)))

    @property
    def rigid_objects(self) -> Mapping[str, str]:
        """Name in recordings to free joint."""
        return {name: f"{name}/free" for name in self.names}

    def parts(self) -> tuple[ScenePart, ...]:
        """Return them as parts of a scene, on the floor behind the robot."""
        return tuple(
            ScenePart(prefix=name, asset=thing.asset, position=(_PARKED_X_M, 0.3 * index, _FLOOR_M + thing.half_height))
            for index, (name, thing) in enumerate(zip(self.names, self.things, strict=True))
        )

    def placed(
        self, among: Sequence["Footprint"], conditions: Conditions, generator: np.random.Generator
    ) -> dict[str, ConditionValue]:
        """Draw where the first of them stand on the table, clear of each other and of the task's things.

        Args:
            among: The task's things.
            conditions: Where these start, and how many distractors there are.
            generator: The stream to draw from.

        Returns:
            Their poses, and how many there was room for.
        """
        taken = [footprint.at(conditions) for footprint in among]
        count = round(number(conditions[DISTRACTOR_COUNT]))
        poses: dict[str, ConditionValue] = {}
        num_placed = 0
        for name, thing in zip(self.names[:count], self.things[:count], strict=True):
            spot = _free_spot(taken, thing.footprint_radius, generator)
            if spot is None:
                break
            radius = thing.footprint_radius
            taken.append(Obstacle(x=spot[0], y=spot[1], half_x=radius, half_y=radius))
            poses[f"{name}.position"] = (*spot, thing.half_height)
            poses[f"{name}.yaw"] = float(generator.uniform(-math.pi, math.pi))
            num_placed += 1
        return {DISTRACTOR_COUNT: num_placed, **poses}

    def joint_positions(self, conditions: Conditions) -> dict[str, tuple[float, ...]]:
        """Return where those in use start."""
        return {
            f"{name}/free": upright_pose(point(conditions[f"{name}.position"]), conditions[f"{name}.yaw"])
            for name in self.names
            if f"{name}.position" in conditions
        }


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A rectangle of the table that is taken.

    Attributes:
        x: Its middle [m].
        y: Its middle [m].
        half_x: Half its length along x [m].
        half_y: Half its length along y [m].
    """

    x: float
    y: float
    half_x: float
    half_y: float


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one of the task's things takes of the table, wherever an episode puts it.

    Attributes:
        asset: Its name among conditions.
        place: Where it is in the model [m]; it stays there in episodes whose conditions do not place it.
        middle: The middle of its rectangle, relative to its origin [m].
        half: Half the rectangle's lengths along x and y [m].
    """

    asset: str
    place: tuple[float, float]
    middle: tuple[float, float]
    half: tuple[float, float]

    def at(self, conditions: Conditions) -> Obstacle:
        """Return what it takes in an episode."""
        x, y = point(conditions.get(f"{self.asset}.position", self.place))[:2]
        return Obstacle(x=x + self.middle[0], y=y + self.middle[1], half_x=self.half[0], half_y=self.half[1])


def footprints(model: mujoco.MjModel, task: Task) -> tuple[Footprint, ...]:
    """Return what the task's things take of the table, seen from above.

    Args:
        model: The compiled scene.
        task: The task in it.
    """
    asset_of = {joint.partition("/")[0]: name for name, joint in task.spec.rigid_objects.items()}
    asset_of |= {asset.root_body.partition("/")[0]: name for name, asset in task.spec.articulations.items()}
    found = []
    for index in range(1, model.nbody):
        name = str(model.body(index).name)
        prefix = name.partition("/")[0]
        if int(model.body_parentid[index]) != 0 or prefix.startswith(_NOT_PLACED_BY_US):
            continue
        low, high = _outline(model, name)
        if int(model.body_jntnum[index]) > 0:
            # It may be turned in any way.
            radius = float(np.sqrt(np.maximum(-low, high) @ np.maximum(-low, high)))
            middle, half = (0.0, 0.0), (radius, radius)
        else:
            middle, half = tuple(((low + high) / 2).tolist()), tuple(((high - low) / 2).tolist())
        x, y, _ = model.body_pos[index].tolist()
        found.append(Footprint(asset=asset_of.get(prefix, prefix), place=(x, y), middle=middle, half=half))
    return tuple(found)


def _outline(model: mujoco.MjModel, body: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rectangle around a body seen from above, relative to its origin [m]. Shapes: (2,), (2,)."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    origin = data.xpos[model.body(body).id][:2]
    low, high = np.zeros(2), np.zeros(2)
    for geom in body_geoms(model, body):
        rotation = data.geom_xmat[geom].reshape(3, 3)
        middle = (data.geom_xpos[geom] + rotation @ model.geom_aabb[geom][:3])[:2] - origin
        half = (np.abs(rotation) @ model.geom_aabb[geom][3:])[:2]
        low, high = np.minimum(low, middle - half), np.maximum(high, middle + half)
    return low, high


def _free_spot(taken: Sequence[Obstacle], radius: float, generator: np.random.Generator) -> tuple[float, float] | None:
    for _ in range(_TRIES):
        x, y = draw_uniform(generator, _LOW, _HIGH)
        if all(_gap(obstacle, x, y) >= radius + _ROOM_M for obstacle in taken):
            return x, y
    return None


def _gap(obstacle: Obstacle, x: float, y: float) -> float:
    """Return how far a point is from an obstacle [m]."""
    beside_x = max(0.0, abs(x - obstacle.x) - obstacle.half_x)
    beside_y = max(0.0, abs(y - obstacle.y) - obstacle.half_y)
    return math.sqrt(beside_x * beside_x + beside_y * beside_y)
