"""Build the tasks of robosuite, ``robosuite:<task>``, in workers of an interpreter that has it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.options import Count, NotNegative
from isaaclab_arena.environments.gym.builder import STEPS_OF_A_SLOW_RESET, GymBuilder, GymConfig
from isaaclab_arena.errors import Problem, did_you_mean

ROBOSUITE_INSTALLATION = "pip install robosuite==1.5.2 mujoco==3.3.2 gymnasium"


@dataclass(frozen=True, kw_only=True)
class RobosuiteConfig(GymConfig):
    """Options of robosuite's tasks, which say themselves what is solved.

    Attributes:
        robots: Names of the robots; a Panda by default, and two in tasks for two arms.
        cameras: What is observed as pictures where ``enable_cameras`` is true.
        camera_size: Height and width of these pictures [pixels].
    """

    success_key: str | None = "success"
    steps_while_starting: NotNegative = STEPS_OF_A_SLOW_RESET
    robots: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")
    camera_size: Count = 84

    def maker_arguments(self) -> dict[str, Any]:
        """Return the arguments of `robosuite_tasks.make`; no cameras without ``enable_cameras``."""
        cameras = list(self.cameras) if self.enable_cameras else []
        return {**self.make_kwargs, "robots": list(self.robots), "cameras": cameras, "camera_size": self.camera_size}

    def problems_with(self, found: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the robots that robosuite does not have."""
        for robot in self.robots:
            if robot not in found["robots"]:
                hint = did_you_mean(robot, found["robots"])
                yield Problem(f"robosuite has no robot '{robot}'{hint}", key="robots")


def robosuite_environment(name: str) -> GymBuilder:
    """Return the builder of ``robosuite:<name>``."""
    return GymBuilder(
        config_class=RobosuiteConfig,
        kind="robosuite",
        name=name,
        install_hint="robosuite needs an older MuJoCo, so name an interpreter with python; there "
        f"{ROBOSUITE_INSTALLATION}",
        worker_install_hint=ROBOSUITE_INSTALLATION,
        leaves_nothing=True,
    )
