"""Names of the files of a run and of the groups inside a recording, all in one place. Pure functions."""

import re
from dataclasses import dataclass
from pathlib import Path

RUN_PLAN_FILE = "run.json"
EPISODES_DIRECTORY = "episodes"
VIDEOS_DIRECTORY = "videos"
VIEWPORT_VIDEO = "viewport"  # the first word in the name of a video of the viewport
SET_ASIDE_DIRECTORY = "set_aside"
ATTEMPTS_DIRECTORY = "attempts"
PLAN_COPY_FILE = f"{ATTEMPTS_DIRECTORY}/plan.json"  # the plan once more, should the first file be lost
CLAIMS_DIRECTORY = "claims"
LOCK_FILE = ".lock"
SERVED_MODEL_FILE = "served_model.json"
CONTACT_SHEET_FILE = "contact_sheet.png"
SETTLED_FILE = "settled.json"
VERIFICATION_FILE = "verification.json"
COMMIT_FILE_PATTERN = "episode_results_rank*.jsonl"
JOB_REPORT_PATTERN = "job_report_rank*.json"
JOB_BEGUN_PATTERN = "job_begun_rank*.json"
EPISODE_FILE_PATTERN = "e*.h5"

DATA_GROUP = "data"
COMMIT_ATTRIBUTE = "commit"
CONTENTS_ATTRIBUTE = "contents"
ACTIONS = "actions"
REWARDS = "rewards"
DONES = "dones"
OBSERVATIONS = "obs"
CAMERA_OBSERVATIONS = "camera_obs"
STATES = "states"
INITIAL_STATE = "initial_state"
SIMULATOR = "simulator"

_DEMO = re.compile(r"demo_(\d{1,18})", re.ASCII)
_DATASET_ENDING = re.compile(r"(_rank\d+)?\.hdf5")
_EPISODE_FILE = re.compile(r"e(\d+)\.h5")
_VIDEO_FILE = re.compile(
    r"(?:viewport|robot-cam)(?:-rebuild\d{1,9})?-env(?P<env>\d{1,18})(?:-(?P<camera>.+))?-episode-(?P<episode>\d{1,18})\.mp4",
    re.ASCII,
)


def dataset_file_name(job: str, rank: int, world_size: int) -> str:
    """Return ``dataset_<job>.hdf5``, with ``_rank<r>`` before the dot for several ranks."""
    suffix = f"_rank{rank}" if world_size > 1 else ""
    return f"dataset_{job}{suffix}.hdf5"


def is_dataset_of(job: str, name: str) -> bool:
    """Whether `dataset_file_name` gives this name to a job's recording, for any rank."""
    beginning = f"dataset_{job}"
    return name.startswith(beginning) and _DATASET_ENDING.fullmatch(name, len(beginning)) is not None


def job_of_dataset(name: str) -> str:
    """Return the job in a name of `dataset_file_name`; for another name, everything before its ending."""
    return _DATASET_ENDING.sub("", name).removeprefix("dataset_").partition(".")[0]


def video_file_name(camera: str | None, *, env_id: int, episode_index: int, rebuild: int | None = None) -> str:
    """Return Isaac Lab Arena's name of a camera's video, ``robot-cam-env<N>-<camera>-episode-<E>.mp4``."""
    # ``viewport-env<N>-episode-<E>.mp4`` without a camera. ``-rebuild<k>`` follows the first word for jobs with several
    # rebuilds. Unlike Arena's, the episode index does not restart in every env slot.
    kind = VIEWPORT_VIDEO if camera is None else "robot-cam"
    prefix = kind if rebuild is None else f"{kind}-rebuild{rebuild}"
    middle = "" if camera is None else f"-{camera}"
    return f"{prefix}-env{env_id}{middle}-episode-{episode_index}.mp4"


def poster_file(video: Path) -> Path:
    """Return the path of a video's poster beside it: ``viewport-env0-episode-3.webp``."""
    return video.with_suffix(".webp")


@dataclass(frozen=True, kw_only=True)
class VideoName:
    """The parts of a video's name; see `video_file_name`."""

    camera: str | None
    env_id: int
    episode_index: int


def parse_video_file_name(name: str) -> VideoName | None:
    """Parse the name of a video, None for any other name."""
    match = _VIDEO_FILE.fullmatch(name)
    if match is None:
        return None
    return VideoName(camera=match["camera"], env_id=int(match["env"]), episode_index=int(match["episode"]))


def episode_file_name(episode_index: int) -> str:
    """Return the name of one episode's file: ``e000123.h5``."""
    return f"e{episode_index:06d}.h5"


def episode_index_of_file(name: str) -> int | None:
    """Return the index in a name of `episode_file_name`, None for any other name."""
    match = _EPISODE_FILE.fullmatch(name)
    return int(match[1]) if match else None


def traceback_file_name(rank: int, attempt: int) -> str:
    """Return the name of a job's file with the traceback of a failure on a rank."""
    return f"traceback_rank{rank}{f'_attempt{attempt}' if attempt > 1 else ''}.txt"


def demo_name(episode_index: int) -> str:
    """Return the group of an episode below ``/data``: ``demo_123``."""
    return f"demo_{episode_index}"


def demo_index(name: str) -> int | None:
    """Return the index in a group's name, None for any other name; other writers pad it with zeros."""
    match = _DEMO.fullmatch(name)
    return int(match[1]) if match else None
