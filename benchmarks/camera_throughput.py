"""How fast cameras render on the CPU: ``python benchmarks/camera_throughput.py [--output FILE]``.

Renders both cameras of ``pick_and_place`` in every row, again and again, with different sizes and kinds
of pictures, and prints a table in Markdown: pictures per second of CPU time, which is the figure to quote on a noisy
machine, and of wall-clock time. Then films an episode as videos do.
"""

import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from isaaclab_arena.environments.arena.table_environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.recording.video_file import VideoFile

CAMERAS = ("robot_head_cam_rgb", "wrist_cam_rgb")


@dataclass(frozen=True)
class Options:
    """Pictures per second of the ray tracer on the CPU."""

    output: Path | None = None
    """Also write the table to this file."""
    num_envs: int = 8
    rounds: int = 7


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Pictures per second, the median of the rounds."""

    per_cpu_second: float
    per_second: float


def main(options: Options) -> None:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("mujoco-warp", "warp-lang"))
    lines = [
        "# Pictures per second",
        "",
        f"{_machine()}, {versions}; `pick_and_place`, {options.num_envs} rows, two cameras, one thread.",
        "",
        "| picture | per CPU second | per second |",
        "| --- | ---: | ---: |",
    ]
    kinds: dict[str, dict[str, Any]] = {
        "64 x 64": {"camera_size": 64},
        "128 x 128": {"camera_size": 128},
        "128 x 128, depth and segmentation": {
            "camera_size": 128, "enable_cameras": True, "camera_depth": True, "camera_segmentation": True,
        },
        "224 x 224": {"camera_size": 224},
        "640 x 480": {"camera_width": 640, "camera_height": 480},
    }  # fmt: skip
    for name, arguments in kinds.items():
        lines.append(_row(name, speed(build(options.num_envs, **arguments), CAMERAS, options.rounds)))
    lines.append(_row("128 x 128, two threads", speed(build(options.num_envs, num_threads=2), CAMERAS, options.rounds)))
    lines.append(_row("viewport, 320 x 240, shadows", speed(build(options.num_envs), (VIEWPORT,), options.rounds)))
    lines += ["", f"Encoding a video takes {encoding_ms(options.rounds):.1f} ms per frame of 320 x 240 beside that."]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")


def build(num_envs: int, *, num_threads: int = 1, **arguments: Any) -> TableEnvironment:
    builder = ENVIRONMENTS.get("pick_and_place")
    config = builder.config_class(**arguments)
    environment = builder.build(config, num_envs=num_envs, device=torch.device("cpu"), num_threads=num_threads)
    conditions = [environment.draw_conditions(np.random.default_rng(row)) for row in range(num_envs)]
    environment.reset(torch.arange(num_envs), conditions)
    return environment


def speed(environment: TableEnvironment, cameras: tuple[str, ...], rounds: int) -> Speed:
    """Render every row once per round, the first round not counted."""
    cpu_s, wall_s = [], []
    rows = torch.arange(environment.num_envs)
    conditions = [environment.draw_conditions(np.random.default_rng(row)) for row in range(environment.num_envs)]
    for _ in range(rounds + 1):
        begin_cpu, begin_rendering = time.process_time(), environment.render_s
        if "camera_obs" in environment.observation_spec:
            environment.reset(rows, conditions)
        else:
            environment.film(rows.tolist(), cameras)
        cpu_s.append(time.process_time() - begin_cpu)
        wall_s.append(environment.render_s - begin_rendering)
    pictures = environment.num_envs * len(cameras)
    return Speed(
        per_cpu_second=pictures / statistics.median(cpu_s[1:]), per_second=pictures / statistics.median(wall_s[1:])
    )


def encoding_ms(rounds: int) -> float:
    """Return the time that one frame of a video takes, noise being about as hard as it gets [ms]."""
    frames = np.random.default_rng(0).integers(0, 60, (10, 240, 320, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        video = VideoFile(Path(folder) / "noise.mp4", frames_per_second=20, title="noise")
        begin = time.process_time()
        for _ in range(rounds):
            for frame in frames:
                video.add(frame)
        video.finish()
        return (time.process_time() - begin) / (rounds * len(frames)) * 1000


def _row(name: str, measured: Speed) -> str:
    return f"| {name} | {measured.per_cpu_second:.0f} | {measured.per_second:.0f} |"


def _machine() -> str:
    cpu = Path("/proc/cpuinfo")
    names = (
        [line.partition(": ")[2] for line in cpu.read_text().splitlines() if "model name" in line]
        if cpu.exists()
        else []
    )
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"{names[0] if names else platform.processor()}, {platform.system()}, {load}"


if __name__ == "__main__":
    main(tyro.cli(Options))
