"""The things of a task's scene as data: their files, their starts, and their observation terms."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.environments.mdp.spaces import ObservationTerm, orientation_term, position_term
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, draw_uniform, point, upright_pose
from isaaclab_arena.sim.scene import ASSETS, ScenePart, part_names


@dataclass(frozen=True, kw_only=True)
class SceneObject:
    """A thing in a scene. Its file holds one body called ``body``; the names in it are checked here.

    Attributes:
        prefix: Its role in the scene: everything in its file is called ``<prefix>/<its name in the file>``.
        asset: Path of its MJCF file, relative to the package's assets or absolute.
        position: Its place when the scene is compiled [m]; its height is that of every start.
        called: Its name in conditions and recordings; the prefix by default.
        area: Lowest and highest corner of its starts: x and y or x, y and z [m], and the yaw of a loose thing [rad].
            None if the task draws it in its own way.
        loose: Whether the body hangs on a free joint called ``free``; otherwise it is a mocap body.
        observed_as: Prefix of its observation terms, empty for none. A thing that is observed is a landmark.

    Raises:
        ConfigError: If its file cannot be read, or lacks the body, or the joint or the mark that it moves by.
    """

    prefix: str
    asset: str
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    called: str = ""
    area: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    loose: bool = False
    observed_as: str = ""

    def __post_init__(self) -> None:
        names = part_names(self.asset)
        wrong = None
        if "body" not in names.bodies:
            wrong = f"has no body called 'body', which holds all of a thing{did_you_mean('body', names.bodies)}"
        elif self.loose and names.free_joints.get("free") != "body":
            wrong = (
                f"has no free joint called 'free' on 'body', as a loose thing has{did_you_mean('free', names.joints)}"
            )
        elif not self.loose and self.area is not None and "body" not in names.mocap_bodies:
            wrong = "has no mocap=\"true\" on 'body', by which a thing with an area is placed; or declare it loose"
        if wrong is not None:
            raise ConfigError(Problem(f"thing '{self.name}' {wrong}", file=str(ASSETS / self.asset)))

    @property
    def name(self) -> str:
        """Its name in conditions and recordings."""
        return self.called or self.prefix

    @property
    def body(self) -> str:
        """Its body in the scene."""
        return f"{self.prefix}/body"

    @property
    def joint(self) -> str:
        """Its free joint in the scene, if it is loose."""
        return f"{self.prefix}/free"

    def part(self) -> ScenePart:
        """Return it as a part of a scene."""
        return ScenePart(prefix=self.prefix, asset=self.asset, position=self.position)

    def draw(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw ``<name>.position`` and, for a loose thing, ``<name>.yaw``; nothing without an area."""
        if self.area is None:
            return {}
        drawn = draw_uniform(generator, *self.area)
        return self.placed(*drawn) if self.loose else {f"{self.name}.position": (*drawn, *self.position[len(drawn) :])}

    def placed(self, x: float, y: float, yaw: float) -> dict[str, ConditionValue]:
        """Return the conditions of a loose thing that stands upright at a place [m, rad]."""
        return {f"{self.name}.position": (x, y, self.position[2]), f"{self.name}.yaw": yaw}

    def pose(self, conditions: Conditions) -> Mapping[str, tuple[float, ...]]:
        """Map its free joint or its mocap body to the pose or position in the conditions."""
        position = conditions[f"{self.name}.position"]
        if self.loose:
            return {self.joint: upright_pose(position, conditions[f"{self.name}.yaw"])}
        return {self.body: point(position)}

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return its terms: the pose of a loose thing, the position of another."""
        if not self.observed_as:
            return {}
        terms = {f"{self.observed_as}_pos": position_term(lambda backend: backend.body_position(self.body))}
        if self.loose:
            terms[f"{self.observed_as}_quat"] = orientation_term(lambda backend: backend.body_orientation(self.body))
        return terms


Thing = SceneObject  # former name, kept for saved documents


@dataclass(frozen=True, kw_only=True)
class ArticulatedAsset:
    """A thing with joints.

    Attributes:
        root_body: Its root body.
        joints: Its joints, without a free one.
        free_joint: The free joint of a root that moves, None for a fixed root.
    """

    root_body: str
    joints: tuple[str, ...]
    free_joint: str | None = None
