"""Objects that can be grasped and moved, and the properties that decide which tasks can use them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

_PUSH_HEIGHT_M = 0.015


@dataclass(frozen=True, kw_only=True)
class ObjectAsset:
    """A rigid object. Its file holds one body called ``body`` on a free joint called ``free``, centred on its origin.

    Attributes:
        name: Registered name.
        words: What an instruction calls it.
        asset: Path of its MJCF file, relative to the package's assets or absolute.
        half_height: From its centre to the surface it rests on [m].
        grasp_width: Widest distance between the fingers that a grasp from above needs [m].
        footprint_radius: Radius of the circle around everything of it, seen from above [m].
        round: Whether it looks the same from every side, so that the gripper may come in at any yaw.
        oblong: Whether the gripper must take it along its own y axis, its width along x being larger.
        top: From its centre to its highest point [m]; ``half_height`` by default.
        inner_radius: Radius of the circle within its outline, seen from above [m]; half the grasp width by default.
    """

    name: str
    words: str
    asset: str
    half_height: float
    grasp_width: float
    footprint_radius: float
    round: bool
    oblong: bool = False
    top: float | None = None
    inner_radius: float | None = None

    def sizes(self) -> Mapping[str, float]:
        """Return what a scripted policy needs to know of it [m]."""
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
