"""How harnesses play LIBERO: steps, waiting, seeds, pictures, gripper and number of episodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Seeding(StrEnum):
    """From what the places of fixtures are drawn.

    ``ONCE``: the generator is seeded when the environment is made, and every episode takes its next reset.
    ``EVERY_RESET``: it is seeded before each reset, with a number that counts the episodes.
    ``EPISODE``: it is seeded before each reset, with a number that belongs to the episode, and nothing else matters.
    """

    ONCE = "once"
    EVERY_RESET = "every reset"
    EPISODE = "episode"


class Gripper(StrEnum):
    """How the last number of an action becomes what LIBERO takes: -1 opens, 1 closes.

    ``RAW``: as it is. ``SIGN``: -1 below zero, else 1. ``OPEN_IS_ONE``: 0 closes and 1 opens, rounded to either.
    """

    RAW = "raw"
    SIGN = "sign"
    OPEN_IS_ONE = "open is one"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What a harness decides of an episode.

    Attributes:
        max_steps: Control steps that a policy has, by suite.
        other_max_steps: The same in suites that the harness does not know.
        num_episodes: Episodes of a task, of which no more than there are initial states.
        seeding: From what the places of fixtures are drawn.
        seed: What the generator is seeded with; for ``EVERY_RESET`` in the first episode.
        resets_before: Resets that the harness makes before that of its first episode.
        camera_size: Width and height that pictures are drawn in [pixels].
        picture_size: Width and height that they are shrunk to, None for none [pixels].
        wait_steps: Control steps in which the arm holds still before a policy is asked.
        gripper: How the last number of an action is meant.
    """

    max_steps: Mapping[str, int]
    other_max_steps: int = 520
    num_episodes: int = 50
    seeding: Seeding = Seeding.ONCE
    seed: int = 7
    resets_before: int = 0
    camera_size: int = 256
    picture_size: int | None = None
    wait_steps: int = 10
    gripper: Gripper = Gripper.RAW

    def steps_in(self, suite: str) -> int:
        """Return how many control steps a policy has in a suite; ``libero_goal_task`` has those of ``libero_goal``."""
        known = (each for each in self.max_steps if f"{suite}_".startswith(f"{each}_"))
        return self.max_steps.get(next(known, ""), self.other_max_steps)


_LONGEST_DEMONSTRATIONS = MappingProxyType(
    {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
)

# docs/how_to/libero.md names the file and the commit that each value was read from.
PROTOCOLS: Mapping[str, Protocol] = {
    "strict": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seeding=Seeding.EPISODE),
    "openpi": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, picture_size=224),
    "openvla": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seed=0, gripper=Gripper.OPEN_IS_ONE),
    "lerobot": Protocol(
        max_steps={**_LONGEST_DEMONSTRATIONS, "libero_spatial": 280},
        other_max_steps=500,
        seeding=Seeding.EVERY_RESET,
        seed=1000,
        resets_before=1,
        camera_size=360,
    ),
    "gr00t": Protocol(
        max_steps={**_LONGEST_DEMONSTRATIONS, "libero_goal": 600, "libero_10": 1000},
        num_episodes=5,
        seed=0,
        gripper=Gripper.OPEN_IS_ONE,
    ),
    "vla_eval": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, other_max_steps=300, gripper=Gripper.SIGN),
}
