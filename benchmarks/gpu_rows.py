"""What the benchmarks of ``make gpu-check`` measure: a row for each thing, and what tells two rows apart."""

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
    """Figures of a task with a number of worlds; physics steps per second unless said otherwise.

    Attributes:
        task: The environment.
        worlds: Number of worlds.
        bare: MuJoCo-Warp alone, from the same states.
        backend: Through the backend.
        environment: Through the environment.
        cpu: MuJoCo on the CPU, from the same states.
        testspeed: What the program ``mjwarp-testspeed`` says of the same model; None where it does not run.
        bytes_per_world: Memory of the device that a world takes, None where that is not known [B].
        build_s: From nothing to worlds that can make a step, kernels compiled [s].
    """

    task: str
    worlds: int
    bare: float
    backend: float
    environment: float
    cpu: float
    testspeed: float | None
    bytes_per_world: float | None
    build_s: float


@dataclass(frozen=True, kw_only=True)
class PicturesRow:
    """Pictures per second of a task with a number of worlds.

    Attributes:
        task: The environment.
        worlds: Number of worlds.
        size_px: Edge of a picture [px].
        rendered: Pictures per second by rendering alone.
        stepped: Pictures per second of whole control steps.
        cpu: By rendering alone on the CPU.
        bytes_per_world: Memory of the device that a world takes with its cameras, None where not known [B].
    """

    task: str
    worlds: int
    size_px: int
    rendered: float
    stepped: float
    cpu: float
    bytes_per_world: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a whole evaluation of one job took, by the table that the runner writes.

    Attributes:
        episodes: Episodes that finished.
        wall_s: The job from its first step of building to its last of recording [s].
        build_s: Of it, building environment and policy [s].
        simulate_s: Of it, simulating [s].
        policy_s: Of it, asking the policy [s].
        render_s: Of it, rendering [s].
        record_s: Of it, recording [s].
    """

    episodes: int
    wall_s: float
    build_s: float
    simulate_s: float
    policy_s: float
    render_s: float
    record_s: float

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
    """The same job on MuJoCo-Warp and on MuJoCo, one after the other.

    Attributes:
        job: What is evaluated: policy and environment.
        worlds: Rows of the job, ``num_envs``.
        warp: On MuJoCo-Warp, the policy on the same device.
        cpu: On MuJoCo, all of it on the CPU.
    """

    job: str
    worlds: int
    warp: Evaluation
    cpu: Evaluation


def episodes_row(row: Mapping[str, Any]) -> EpisodesRow:
    """Return a row of episodes as it was before it became JSON."""
    sides = {side: Evaluation(**row[side]) for side in ("warp", "cpu")}
    return EpisodesRow(job=row["job"], worlds=row["worlds"], **sides)
