"""Rows of figures that the benchmarks of ``make gpu-check`` measure, and the fields that tell two rows apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROW_KEYS: Mapping[str, tuple[str, ...]] = {
    "physics": ("task", "worlds"),
    "pictures": ("task", "worlds", "size_px"),
    "episodes": ("job", "worlds"),
}
"""Part to the fields that tell its rows apart."""


@dataclass(frozen=True, kw_only=True)
class PhysicsRow:
    """Figures of a task with a number of worlds; physics steps per second unless said otherwise."""

    task: str  # The environment.
    worlds: int  # Number of worlds.
    bare: float  # MuJoCo-Warp alone, from the same states.
    backend: float  # Through the backend.
    environment: float  # Through the environment.
    cpu: float  # MuJoCo on the CPU, from the same states.
    testspeed: float | None  # What the program ``mjwarp-testspeed`` says of the same model; None where it does not run.
    bytes_per_world: float | None  # Memory of the device that a world takes, None where that is not known [B].
    build_s: float  # From nothing to worlds that can make a step, kernels compiled [s].


@dataclass(frozen=True, kw_only=True)
class PicturesRow:
    """Pictures per second of a task with a number of worlds."""

    task: str  # The environment.
    worlds: int  # Number of worlds.
    size_px: int  # Edge of a picture [px].
    rendered: float  # Pictures per second by rendering alone.
    stepped: float  # Pictures per second of whole control steps.
    cpu: float  # By rendering alone on the CPU.
    bytes_per_world: float | None  # Memory of the device that a world takes with its cameras, None where not known [B].


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a whole evaluation of one job took, by the table that the runner writes."""

    episodes: int  # Episodes that finished.
    wall_s: float  # The job from its first step of building to its last of recording [s].
    build_s: float  # Of it, building environment and policy [s].
    simulate_s: float  # Of it, simulating [s].
    policy_s: float  # Of it, asking the policy [s].
    render_s: float  # Of it, rendering [s].
    record_s: float  # Of it, recording [s].

    @property
    def per_s(self) -> float:
        """Episodes per second once everything is built."""
        return self.episodes / (self.wall_s - self.build_s)

    @property
    def per_s_with_build(self) -> float:
        """Episodes per second of the whole job."""
        return self.episodes / self.wall_s

    def share(self, phase: str) -> float:
        """Return the part of the time without building that ``simulate``, ``policy``, ``render`` or ``record`` took."""
        return getattr(self, f"{phase}_s") / (self.wall_s - self.build_s)


@dataclass(frozen=True, kw_only=True)
class EpisodesRow:
    """The same job on MuJoCo-Warp and on MuJoCo, one after the other."""

    job: str  # What is evaluated: policy and environment.
    worlds: int  # Env slots of the job, ``num_envs``.
    warp: Evaluation  # On MuJoCo-Warp, the policy on the same device.
    cpu: Evaluation  # On MuJoCo, all of it on the CPU.


def episodes_row(row: Mapping[str, Any]) -> EpisodesRow:
    """Return a row of episodes as it was before it became JSON."""
    sides = {side: Evaluation(**row[side]) for side in ("warp", "cpu")}
    return EpisodesRow(job=row["job"], worlds=row["worlds"], **sides)
