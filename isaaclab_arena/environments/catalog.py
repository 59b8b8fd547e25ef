"""The names of environments, suites of them, embodiments and objects; and the objects, which are data alone."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from isaaclab_arena.config.expansion.suites import SuiteTask
from isaaclab_arena.registry import Registry, constants

# The suites of tasks that papers report as one number, by the names of their environments.


@dataclass(frozen=True, kw_only=True)
class NamedTasks:
    """A suite with a fixed list of tasks."""

    words: str  # description for the list of suites
    family: str  # part before the colon in the names of its environments
    names: tuple[str, ...]

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        del options
        return [SuiteTask(label=name, environment=f"{self.family}:{name}") for name in self.names]


METAWORLD_MT10 = NamedTasks(
    words="Meta-World's ten tasks of MT10, in its order.",
    family="metaworld",
    names=(
        "reach-v3", "push-v3", "pick-place-v3", "door-open-v3", "drawer-open-v3", "drawer-close-v3",
        "button-press-topdown-v3", "peg-insert-side-v3", "window-open-v3", "window-close-v3",
    ),
)  # fmt: skip

METAWORLD_MT50 = NamedTasks(
    words="Meta-World's fifty tasks of MT50, in its order.",
    family="metaworld",
    names=(
        "assembly-v3", "basketball-v3", "bin-picking-v3", "box-close-v3", "button-press-topdown-v3",
        "button-press-topdown-wall-v3", "button-press-v3", "button-press-wall-v3", "coffee-button-v3", "coffee-pull-v3",
        "coffee-push-v3", "dial-turn-v3", "disassemble-v3", "door-close-v3", "door-lock-v3", "door-open-v3",
        "door-unlock-v3", "hand-insert-v3", "drawer-close-v3", "drawer-open-v3", "faucet-open-v3", "faucet-close-v3",
        "hammer-v3", "handle-press-side-v3", "handle-press-v3", "handle-pull-side-v3", "handle-pull-v3",
        "lever-pull-v3", "pick-place-wall-v3", "pick-out-of-hole-v3", "pick-place-v3", "plate-slide-v3",
        "plate-slide-side-v3", "plate-slide-back-v3", "plate-slide-back-side-v3", "peg-insert-side-v3",
        "peg-unplug-side-v3", "soccer-v3", "stick-push-v3", "stick-pull-v3", "push-v3", "push-wall-v3", "push-back-v3",
        "reach-v3", "reach-wall-v3", "shelf-place-v3", "sweep-into-v3", "sweep-v3", "window-open-v3", "window-close-v3",
    ),
)  # fmt: skip


ENVIRONMENTS = Registry(
    "environment",
    {
        "reach": "isaaclab_arena.environments.tasks.grasping:REACH",
        "lift_object": "isaaclab_arena.environments.tasks.grasping:LIFT_OBJECT",
        "pick_and_place": "isaaclab_arena.environments.tasks.grasping:PICK_AND_PLACE",
        "open_drawer": "isaaclab_arena.environments.tasks.articulated:OPEN_DRAWER",
        "close_drawer": "isaaclab_arena.environments.tasks.articulated:CLOSE_DRAWER",
        "open_microwave": "isaaclab_arena.environments.tasks.articulated:OPEN_MICROWAVE",
        "stack": "isaaclab_arena.environments.tasks.two_cubes:STACK",
        "pick_by_colour": "isaaclab_arena.environments.tasks.two_cubes:PICK_BY_COLOUR",
        "sort_two": "isaaclab_arena.environments.tasks.two_cubes:SORT_TWO",
        "push_to_goal": "isaaclab_arena.environments.tasks.pushing:PUSH_TO_GOAL",
        "push_cube": "isaaclab_arena.environments.tasks.pushing:PUSH_CUBE",
        "walk_humanoid": "isaaclab_arena.environments.tasks.walk_humanoid:WALK_HUMANOID",
        "track_motion": "isaaclab_arena.environments.tasks.track_motion:TRACK_MOTION",
        "press_button": "isaaclab_arena.environments.tasks.articulated:PRESS_BUTTON",
        "cartpole": "isaaclab_arena.environments.tasks.cartpole:CARTPOLE",
        "velocity_go1": "isaaclab_arena.environments.tasks.velocity_go1:VELOCITY_GO1",
    },
    entry_point_group="isaaclab_arena.environments",
    schemes={
        "gym": "isaaclab_arena.environments.gym.builder:gymnasium_environment",
        "metaworld": "isaaclab_arena.environments.gym.builder:meta_world_environment",
        "libero": "isaaclab_arena.environments.libero:libero_environment",
        "robosuite": "isaaclab_arena.environments.gym.builder:robosuite_environment",
        "vla_eval": "isaaclab_arena.environments.gym.builder:vla_eval_environment",
    },
    lookalikes={r"[\w./:-]+-v\d+": "gym:{}", r"[a-z]+(-[a-z]+)*-v3": "metaworld:{}"},
)

_LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")

SUITES = Registry(
    "suite",
    {
        **constants("isaaclab_arena.environments.libero", *_LIBERO),
        **constants(__name__, "metaworld_mt10", "metaworld_mt50"),
    },
    entry_point_group="isaaclab_arena.suites",
    schemes={
        "libero": "isaaclab_arena.environments.libero:LiberoSuite",
        "vla_eval": "isaaclab_arena.environments.gym.builder:VlaEvalSuite",
    },
)

EMBODIMENTS = Registry(
    "embodiment",
    {
        "panda": "isaaclab_arena.environments.robots.embodiment:PANDA",
        "so101": "isaaclab_arena.environments.robots.embodiment:SO101",
    },
    entry_point_group="isaaclab_arena.embodiments",
    schemes={"menagerie": "isaaclab_arena.environments.robots.embodiment:menagerie_embodiment"},
)

_OBJECTS = ("cube", "cylinder", "can", "bottle", "mug", "cracker_box", "plate", "bin", "blue_cube")

OBJECTS = Registry(
    "object",
    constants(__name__, *_OBJECTS),
    entry_point_group="isaaclab_arena.objects",
)


# Objects that can be grasped and moved, and the properties that decide which tasks can use them.


@dataclass(frozen=True)
class ObjectAsset:
    """A rigid object; its file holds one body ``body`` on a free joint ``free``, centred on its origin."""

    name: str  # registered name
    words: str  # its name in instructions
    asset: str  # path of its MJCF file, relative to the package's assets or absolute
    half_height: float  # from its centre to the surface it rests on [m]
    grasp_width: float  # widest distance between the fingers for a grasp from above [m]
    footprint_radius: float  # of the circle around it, seen from above [m]
    _: KW_ONLY
    round: bool  # True: it looks the same from all sides, so any yaw of the gripper fits
    oblong: bool = False  # True: only a grasp along its own y axis fits, its width along x being larger
    top: float | None = None  # from its centre to its highest point [m]; None: half_height
    inner_radius: float | None = None  # of the circle within its outline [m]; None: half of grasp_width

    def sizes(self) -> Mapping[str, float]:
        """Return its lengths [m] and flags for scripted policies."""
        return {
            "object_half_height": self.half_height,
            "object_top": self.half_height if self.top is None else self.top,
            "object_round": float(self.round),
            "object_oblong": float(self.oblong),
            "object_radius": self.footprint_radius,
            "object_inner_radius": self.grasp_width / 2 if self.inner_radius is None else self.inner_radius,
            "push_height": 0.015,
        }


# Name, words and file, then half height, width between the fingers, and radius from above [m].
CUBE = ObjectAsset("cube", "red cube", "objects/cube.xml", 0.025, 0.05, 0.0354, round=False)
CYLINDER = ObjectAsset("cylinder", "green cylinder", "objects/cylinder.xml", 0.035, 0.048, 0.024, round=True)
CAN = ObjectAsset("can", "blue can", "objects/can.xml", 0.05, 0.0624, 0.0312, round=True)
BLUE_CUBE = ObjectAsset("blue_cube", "blue cube", "objects/blue_cube.xml", 0.025, 0.05, 0.0354, round=False)
BOTTLE = ObjectAsset("bottle", "violet bottle", "objects/bottle.xml", 0.08, 0.029, 0.03, inner_radius=0.03, round=True)
MUG = ObjectAsset("mug", "pink mug", "objects/mug.xml", 0.045, 0.064, 0.06, round=False, oblong=True)
CRACKER_BOX = ObjectAsset(
    "cracker_box", "yellow cracker box", "objects/cracker_box.xml", 0.10, 0.06, 0.0808, round=False, oblong=True
)
PLATE = ObjectAsset("plate", "white plate", "objects/plate.xml", 0.009, 0.18, 0.09, round=True)
BIN = ObjectAsset("bin", "blue bin", "objects/bin.xml", 0.0, 0.196, 0.1386, round=False, top=0.07)
