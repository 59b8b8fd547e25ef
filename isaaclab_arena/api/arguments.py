"""The types of what `evaluate` takes: policies, and options by name."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase


class ActsOnObservations(Protocol):
    """An object with the methods of Isaac Lab Arena's policies, whatever its class; ``reset(env_ids)`` may be there."""

    def get_action(self, env: Environment, observation: Observation) -> Any:
        """Return the action of every env slot. Shape: (num_envs, action_dim)."""
        ...


PolicyLike: TypeAlias = str | type[PolicyBase[Any]] | PolicyBase[Any] | ActsOnObservations | Callable[[Any], Any]
"""What `evaluate` takes as a policy: a registered name, a class path, a class, an object or a function.

A function or torch module gets the observation of all env slots: a nested dict of tensors (num_envs, ...) on the
environment's device, such as ``observation["policy"]["robot_joint_pos"]``. It returns the actions, a tensor or an array
(num_envs, action_dim). An object has ``get_action(env, observation)``, and ``reset(env_ids)`` if it remembers anything.
Modules that an object is or holds are in evaluation mode meanwhile. Objects are not closed.
"""


class RunKeywords(TypedDict, total=False):
    """Options of a run, which the command line has under the same names and explains."""

    device: str | None
    policy_device: str | None
    policy_device_id: int | None
    num_steps: int | None
    placement_seed: int | None
    limit: int | None
    output_base_dir: "str | PathLike[str]"
    resume: "str | PathLike[str] | bool | None"
    rerun: tuple[str, ...]
    retry_errors: bool
    no_dataset: bool
    record_observations: Literal["none", "state", "all"]
    compression: Literal["none", "lzf", "gzip", "zstd"]
    eager_pictures: bool
    record_camera_video: bool
    record_viewport_video: bool
    video_episodes: str
    video_fps: float
    no_report: bool
    save_conditions: "str | PathLike[str] | None"
    tracking: tuple[str, ...]
    fail_fast: bool
    continue_on_error: bool
    max_equal_errors: int
    assignment: Literal["round_robin", "split", "dynamic"]
    split_jobs: bool
    lease_s: float
    deterministic: bool
    policy_batch: int
    pipeline: int
    step_timeout_s: float
    build_timeout_s: float
    no_import: bool
    num_threads: int | None
    torch_threads: int
    process_group: Literal["auto", "nccl", "gloo"]


class JobFileKeywords(RunKeywords, total=False):
    """Options of a run of a job file: those of `RunKeywords`, and what its jobs get where they do not say."""

    num_episodes: int | None
    num_envs: int | None
    seed: int | None
    enable_cameras: bool


class JobKeywords(RunKeywords, total=False):
    """Options of a run of one job: those of `RunKeywords`, and those of the included environments.

    Environments of other packages have options of their own, which go into ``environment_args``.
    """

    conditions: "str | PathLike[str]"
    backend: Literal["auto", "mujoco", "warp"]
    viewport_width: int
    viewport_height: int
    camera_width: int
    camera_height: int
    camera_size: int | None
    camera_depth: bool
    camera_segmentation: bool
    embodiment: str
    object: str
    action_mode: Literal["joint_position", "ee_delta"]
    start: Literal["upright", "hanging", "beginning", "anywhere"]
    motion_file: "str | PathLike[str] | None"
