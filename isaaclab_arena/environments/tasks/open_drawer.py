"""Pull a drawer open by its handle."""

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.mdp.task import TaskSpec
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.articulated_task import MovedJoint, OpenByHandle, Opening

OPEN_M = 0.15
PULLED_M = 0.10
HOLD_STEPS = 3

_FASTEST_PULL_M = 0.05
_LOW, _HIGH = (0.68, -0.10), (0.74, 0.10)
_CABINET = SceneObject(prefix="cabinet", asset="objects/cabinet.xml", position=(0.7, 0.0, 0.0), area=(_LOW, _HIGH))
DRAWER = MovedJoint(
    joint="slide",
    called="drawer_opening",
    unit="m",
    site="handle",
    starts=(0.0, 0.02),
    bar=((0.0, -0.065, 0.0), (0.0, 0.065, 0.0)),
)
_OPENING = Opening(quantity="opening", open=OPEN_M, pulled=PULLED_M, fastest=_FASTEST_PULL_M)
_SPEC = TaskSpec(
    name="open_drawer",
    instruction="open the drawer",
    paraphrases=(
        "please open the drawer",
        "pull the drawer wide open",
        "pull out the drawer by its handle",
        "take the handle and draw it towards you until something slides out of the cabinet",
        "slide out what is inside that cabinet",
    ),
    time_limit_s=10.0,
    hold_steps=HOLD_STEPS,
    sites={"handle": "cabinet/handle"},
    sizes={"drawer_threshold": OPEN_M},
)


class OpenDrawer(OpenByHandle):
    """Solved when the drawer has been open by 0.15 m for 0.15 s, at least 0.1 m of it pulled by a finger at the handle.

    Way that the drawer makes without a finger at its handle, or faster than a hand pulls (1 m/s), is not pulled: a
    drawer that is knocked or squeezed open does not count.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(_SPEC, _CABINET, DRAWER, _OPENING, embodiment.robot)


OPEN_DRAWER = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: OpenDrawer(embodiment))
