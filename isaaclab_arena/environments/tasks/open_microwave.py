"""Open the door of a microwave oven by its handle."""

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.mdp.task import TaskSpec
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.articulated_task import MovedJoint, OpenByHandle, Opening

OPEN_RAD = 1.0
PULLED_RAD = 0.6
HOLD_STEPS = 3
NUM_WAYPOINTS = 5

_FASTEST_PULL_RAD = 0.15
_LOW, _HIGH = (0.66, -0.05), (0.72, 0.05)
_MICROWAVE = SceneObject(
    prefix="microwave", asset="objects/microwave.xml", position=(0.7, 0.0, 0.0), area=(_LOW, _HIGH)
)
_DOOR = MovedJoint(
    joint="hinge", called="door_angle", unit="rad", site="handle", bar=((0.0, 0.0, -0.135), (0.0, 0.0, 0.018))
)
_OPENING = Opening(quantity="angle", open=OPEN_RAD, pulled=PULLED_RAD, fastest=_FASTEST_PULL_RAD)
_SPEC = TaskSpec(
    name="open_microwave",
    instruction="open the microwave",
    paraphrases=(
        "please open the microwave",
        "pull the microwave wide open",
        "pull the door of the microwave towards you",
        "swing the door of the oven aside",
        "I want to look inside that oven",
    ),
    time_limit_s=12.0,
    hold_steps=HOLD_STEPS,
    sites={
        "handle": "microwave/handle",
        **{f"way_{number}": f"microwave/way_{number}" for number in range(1, NUM_WAYPOINTS + 1)},
    },
)


class OpenMicrowave(OpenByHandle):
    """Solved when the door has been open by 1 rad for 0.15 s, at least 0.6 rad of it pulled by a finger at the handle.

    Way that the door makes without a finger at its handle, or faster than a hand pulls (3 rad/s), is not pulled.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(_SPEC, _MICROWAVE, _DOOR, _OPENING, embodiment.robot)


OPEN_MICROWAVE = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: OpenMicrowave(embodiment))
