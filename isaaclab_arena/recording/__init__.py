"""Observers that write episodes to disk: recordings, videos, contact sheets; and the options of videos."""

from dataclasses import dataclass

MAX_FPS = 1_000


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """The films of a job."""

    camera: bool = False  # a video of each camera that policies see or could see
    viewport: bool = False  # a video of the whole scene
    first_episodes: int | None = None  # number of filmed episodes, from episode 0; None for all
    only_failures: bool = False  # True: only episodes that did not succeed are kept
    frames_per_second: float = 10.0  # of the robot's time; at most one frame per control step
