"""Measure the speed of cameras on the CPU.

Renders both cameras of ``pick_and_place`` in every env slot repeatedly, with different sizes and kinds of pictures:
pictures per CPU second, the figure to quote on a noisy machine, and per second. Then encodes a video.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.environments import build
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, median, run, timed
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.recording.video import VideoFile

CAMERAS = ("robot_head_cam_rgb", "wrist_cam_rgb")
PICTURES: dict[str, dict[str, Any]] = {
    "64 x 64": {"camera_size": 64},
    "128 x 128": {"camera_size": 128},
    "128 x 128, depth and segmentation": {
        "camera_size": 128, "enable_cameras": True, "camera_depth": True, "camera_segmentation": True,
    },
    "224 x 224": {"camera_size": 224},
    "640 x 480": {"camera_width": 640, "camera_height": 480},
    "128 x 128, two threads": {"num_threads": 2},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: int = 8  # Number of env slots.
    rounds: int = 7  # Pictures of every slot.


def speed(options: Options, cameras: tuple[str, ...] = CAMERAS, **arguments: Any) -> tuple[str, str]:
    """Render every slot once per round after a warm-up; return pictures per CPU second and per second."""
    environment: TableEnvironment = build("pick_and_place", options.num_envs, **arguments)
    slots = torch.arange(options.num_envs)
    conditions = [environment.draw_conditions(np.random.default_rng(slot)) for slot in slots.tolist()]
    environment.reset(slots, conditions)

    def render() -> None:
        if "camera_obs" in environment.observation_spec:
            environment.reset(slots, conditions)
        else:
            environment.film(slots.tolist(), cameras)

    rounds = []
    for _ in range(options.rounds + 1):
        rendered_s = environment.render_s
        rounds.append(Timing(cpu_s=timed(render).cpu_s, wall_s=environment.render_s - rendered_s))
    pictures = options.num_envs * len(cameras)
    per_cpu_s, per_s = (pictures / median(rounds[1:], clock) for clock in ("cpu_s", "wall_s"))
    return f"{per_cpu_s:.0f}", f"{per_s:.0f}"


def main(options: Options) -> None:
    """Render pictures of every kind, and write the page."""
    page = Page("camera_throughput", "Pictures per second", options, "mujoco-warp", "warp-lang")
    table = Table("picture", "per CPU second", "per second")
    for name, arguments in PICTURES.items():
        table.add(name, *speed(options, **arguments))
    table.add("viewport, 320 x 240, shadows", *speed(options, (VIEWPORT,)))
    # Noise is about as hard to encode as it gets.
    frames = np.random.default_rng(0).integers(0, 60, (10, 240, 320, 3), np.uint8)
    with tempfile.TemporaryDirectory(prefix="camera_throughput_") as name:
        video = VideoFile(Path(name) / "noise.mp4", frames_per_second=20, title="noise")
        begin = time.process_time()
        for _ in range(options.rounds):
            for frame in frames:
                video.add(frame)
        video.finish()
        encoding_ms = (time.process_time() - begin) / (options.rounds * len(frames)) * 1000
    encoding = f"Encoding a video takes {encoding_ms:.1f} ms per frame of 320 x 240 beside that."
    print(encoding)
    page.write(f"`pick_and_place`, {options.num_envs} env slots, two cameras, one thread.", table, encoding)


if __name__ == "__main__":
    run(main, Options)
