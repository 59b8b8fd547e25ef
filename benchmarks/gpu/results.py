"""Rows of figures of ``make gpu-check``: measure them, merge them with earlier results, and write them."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.storage.atomic import write_text

ROW_KEYS: Mapping[str, tuple[str, ...]] = {
    "physics": ("task", "worlds"),
    "pictures": ("task", "worlds", "size_px"),
    "episodes": ("job", "worlds"),
}
"""Part to the fields that tell its rows apart."""


@dataclass(frozen=True, kw_only=True)
class PhysicsRow:
    """Figures of a task with a number of worlds, in physics steps per second unless a field names another unit."""

    task: str  # The environment.
    worlds: int  # Number of worlds.
    bare: float  # MuJoCo-Warp alone, from the same states.
    backend: float  # Through the backend.
    environment: float  # Through the environment.
    cpu: float  # MuJoCo on the CPU, from the same states.
    testspeed: float | None  # Figure of the program ``mjwarp-testspeed`` for the same model; None if it does not run.
    bytes_per_world: float | None  # Device memory of a world, None if unknown [B].
    build_s: float  # Building the worlds with compiled kernels [s].


@dataclass(frozen=True, kw_only=True)
class PicturesRow:
    """Pictures per second of a task with a number of worlds."""

    task: str  # The environment.
    worlds: int  # Number of worlds.
    size_px: int  # Edge of a picture [px].
    rendered: float  # Pictures per second by rendering alone.
    stepped: float  # Pictures per second of whole control steps.
    cpu: float  # By rendering alone on the CPU.
    bytes_per_world: float | None  # Device memory of a world with its cameras, None if unknown [B].


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Durations of a whole evaluation of one job, from the table of the runner."""

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
        """Return the share of ``simulate``, ``policy``, ``render`` or ``record`` in the time without building."""
        return getattr(self, f"{phase}_s") / (self.wall_s - self.build_s)


@dataclass(frozen=True, kw_only=True)
class EpisodesRow:
    """The same job on MuJoCo-Warp and on MuJoCo, one after the other."""

    job: str  # Policy and environment.
    worlds: int  # Env slots of the job, ``num_envs``.
    warp: Evaluation  # On MuJoCo-Warp, the policy on the same device.
    cpu: Evaluation  # On MuJoCo, all of it on the CPU.


def episodes_row(row: Mapping[str, Any]) -> EpisodesRow:
    """Return a row of episodes from its JSON."""
    sides = {side: Evaluation(**row[side]) for side in ("warp", "cpu")}
    return EpisodesRow(job=row["job"], worlds=row["worlds"], **sides)


_MACHINE = ("gpu", "cpu", "versions")


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with later ones added; a later result replaces an earlier one in its place."""
    # Results of another machine, or of other versions, do not belong beside these.
    if any(before.get(name) != after[name] for name in _MACHINE):
        before = {}
    result = {name: after[name] for name in _MACHINE}
    for part, fields in {"checks": ("name",), **ROW_KEYS}.items():
        rows = (*before.get(part, ()), *after.get(part, ()))
        result[part] = list({tuple(row[name] for name in fields): row for row in rows}.values())
        if part != "checks":
            order = [*(name for name in fields if name != "worlds"), "worlds"]
            result[part].sort(key=lambda row, order=order: [row[name] for name in order])
    return result


def read(path: Path) -> dict[str, Any]:
    """Return the content of a results file, an empty one without a file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a results file as a whole or not at all: the machine may be taken away at any moment."""
    write_text(path, json.dumps(result, indent=2) + "\n", overwrite=True)


OUT_OF_TIME = 3
"""Exit code of a program without time for all of its measurements."""

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options of every benchmark of ``make gpu-check``."""

    device: str = "cuda:0"  # Device of the worlds.
    rounds: int = 3  # Turns of each measurement.
    limit_s: float | None = None  # Time for all measurements, None without a limit [s].
    known: Path | None = None  # Results file, whose rows are not measured again.
    output: Path | None = None  # JSON file for the figures; none by default.


def unknown_keys(part: str, keys: Iterable[tuple[Any, ...]], known: Path | None) -> list[tuple[Any, ...]]:
    """Return the keys of a part's rows that a results file lacks; all of them without a file."""
    if known is None or not known.is_file():
        return list(keys)
    rows = json.loads(known.read_text(encoding="utf-8")).get(part, [])
    measured = {tuple(row[name] for name in ROW_KEYS[part]) for row in rows}
    return [key for key in keys if key not in measured]


def measure_all(
    keys: Iterable[tuple[Any, ...]], measure: Callable[..., Row], options: GpuOptions
) -> tuple[Sequence[Row], int]:
    """Measure rows until the time is up; write all after each, and return them and the exit code."""
    rows: list[Any] = []
    began = time.perf_counter()
    took_s, code = 0.0, 0
    for key in keys:
        started = time.perf_counter()
        if options.limit_s is not None and started - began + took_s > options.limit_s:
            print(f"no time left for {key}", flush=True)
            code = code or OUT_OF_TIME
            continue
        try:
            rows.append(measure(*key))
        except (RuntimeError, MemoryError, EnvironmentBuildError) as error:
            print(f"{key} failed: {error}", flush=True)
            code = 1
        took_s = time.perf_counter() - started
        if options.output is not None:
            text = json.dumps([asdict(row) for row in rows], indent=2)
            options.output.write_text(f"{text}\n", encoding="utf-8")
    return rows, code
