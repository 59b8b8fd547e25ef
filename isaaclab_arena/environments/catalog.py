"""The names of environments, suites of them, embodiments and objects; and the objects, which are data alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from isaaclab_arena.registry import Registry

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

SUITES = Registry(
    "suite",
    {
        **{
            name: f"isaaclab_arena.environments.libero:{name.upper()}"
            for name in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
        },
        "metaworld_mt10": "isaaclab_arena.environments.suites:METAWORLD_MT10",
        "metaworld_mt50": "isaaclab_arena.environments.suites:METAWORLD_MT50",
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
    {name: f"isaaclab_arena.environments.catalog:{name.upper()}" for name in _OBJECTS},
    entry_point_group="isaaclab_arena.objects",
)


# Objects that can be grasped and moved, and the properties that decide which tasks can use them.

_PUSH_HEIGHT_M = 0.015


@dataclass(frozen=True, kw_only=True)
class ObjectAsset:
    """A rigid object; its file holds one body ``body`` on a free joint ``free``, centred on its origin."""

    name: str  # registered name
    words: str  # its name in instructions
    asset: str  # path of its MJCF file, relative to the package's assets or absolute
    half_height: float  # from its centre to the surface it rests on [m]
    grasp_width: float  # widest distance between the fingers for a grasp from above [m]
    footprint_radius: float  # of the circle around it, seen from above [m]
    round: bool  # True: it looks the same from all sides, so any yaw of the gripper fits
    oblong: bool = False  # True: only a grasp along its own y axis fits, its width along x being larger
    top: float | None = None  # from its centre to its highest point [m]; None: half_height
    inner_radius: float | None = None  # of the circle within its outline [m]; None: half of grasp_width

    def sizes(self) -> Mapping[str, float]:
        """Return its lengths [m] and flags for scripted policies."""
        inner_radius = self.grasp_width / 2 if self.inner_radius is None else self.inner_radius
        return {
            "object_half_height": self.half_height,
            "object_top": self.half_height if self.top is None else self.top,
            "object_round": float(self.round),
            "object_oblong": float(self.oblong),
            "object_radius": self.footprint_radius,
            "object_inner_radius": inner_radius,
            "push_height": _PUSH_HEIGHT_M,
        }


CUBE = ObjectAsset(
    name="cube",
    words="red cube",
    asset="objects/cube.xml",
    half_height=0.025,
    grasp_width=0.05,
    footprint_radius=0.0354,
    round=False,
)
CYLINDER = ObjectAsset(
    name="cylinder",
    words="green cylinder",
    asset="objects/cylinder.xml",
    half_height=0.035,
    grasp_width=0.048,
    footprint_radius=0.024,
    round=True,
)
CAN = ObjectAsset(
    name="can",
    words="blue can",
    asset="objects/can.xml",
    half_height=0.05,
    grasp_width=0.0624,
    footprint_radius=0.0312,
    round=True,
)
BLUE_CUBE = replace(CUBE, name="blue_cube", words="blue cube", asset="objects/blue_cube.xml")
BOTTLE = ObjectAsset(
    name="bottle",
    words="violet bottle",
    asset="objects/bottle.xml",
    half_height=0.08,
    grasp_width=0.029,
    footprint_radius=0.03,
    inner_radius=0.03,
    round=True,
)
MUG = ObjectAsset(
    name="mug",
    words="pink mug",
    asset="objects/mug.xml",
    half_height=0.045,
    grasp_width=0.064,
    footprint_radius=0.06,
    round=False,
    oblong=True,
)
CRACKER_BOX = ObjectAsset(
    name="cracker_box",
    words="yellow cracker box",
    asset="objects/cracker_box.xml",
    half_height=0.10,
    grasp_width=0.06,
    footprint_radius=0.0808,
    round=False,
    oblong=True,
)
PLATE = ObjectAsset(
    name="plate",
    words="white plate",
    asset="objects/plate.xml",
    half_height=0.009,
    grasp_width=0.18,
    footprint_radius=0.09,
    round=True,
)
BIN = ObjectAsset(
    name="bin",
    words="blue bin",
    asset="objects/bin.xml",
    half_height=0.0,
    top=0.07,
    grasp_width=0.196,
    footprint_radius=0.1386,
    round=False,
)
