"""A scripted expert for LIBERO's first spatial task, which sees nothing but the observation."""

from collections.abc import Mapping
from typing import ClassVar

from isaaclab_arena.policy.experts.robosuite import Plan, RobosuiteExpertPolicy

LIBERO_PLANS: Mapping[str, Plan] = {
    "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate": Plan(
        thing="akita_black_bowl_1",
        # The fingers take the rim, one of them inside the bowl.
        grip=(0.0, -0.044, 0.033),
        has_corners=False,
        onto="plate_1",
        place=(0.0, 0.0, 0.01),
        tolerance_m=0.012,
        clearance_m=0.1,
    )
}
"""The tasks of ``libero_spatial`` for which there is an expert."""


class LiberoExpertPolicy(RobosuiteExpertPolicy):
    """Does what the expert of LIBERO's task does, where the last number of an action closes the gripper at 1."""

    name: ClassVar[str] = "libero_expert"
    plans: ClassVar[Mapping[str, Plan]] = LIBERO_PLANS
    family: ClassVar[str] = "libero:libero_spatial/"
