"""Make the moving picture at the top of the README: six tasks, each solved by the scripted policy.

Usage: MUJOCO_GL=egl python -m benchmarks.artifacts.front_picture
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks import ROOT
from benchmarks.artifacts.task_catalog import captioned, render, scripted_episode, tasks
from benchmarks.harness.measure import run
from isaaclab_arena.errors import ArenaError

SHOWN = ("lift_object", "pick_and_place", "stack", "open_drawer", "pick_by_colour", "push_cube")
TILE = (200, 150)
COLUMNS = 3
FRAMES, LAST_FRAMES = 32, 8  # of each episode, and the end of it that stays
FRAME_MS = 110
MOST_BYTES = 1_500_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    output: Path = ROOT / "docs" / "images" / "tasks.webp"  # The animated picture.


def main(options: Options) -> None:
    """Film the first episode of each task, and write the films side by side into one file."""
    width, height = TILE
    lines = -(-len(SHOWN) // COLUMNS)
    sheets = [Image.new("RGB", (COLUMNS * width, lines * height), "white") for _ in range(FRAMES + LAST_FRAMES)]
    builders = tasks()
    for place, name in enumerate(SHOWN):
        line, column = divmod(place, COLUMNS)
        environment, states = scripted_episode(builders[name])
        # Episodes differ in length, so each film takes the same number of frames from its whole episode.
        moments = [round(share * (len(states) - 1) / (FRAMES - 1)) for share in range(FRAMES)]
        frames = [captioned(render(environment, states[moment], TILE), name) for moment in moments]
        for sheet, frame in zip(sheets, frames + frames[-1:] * LAST_FRAMES, strict=True):
            sheet.paste(frame, (column * width, line * height))
    sheets[0].save(
        options.output, save_all=True, append_images=sheets[1:], duration=FRAME_MS, loop=0, quality=72, method=6
    )
    if options.output.stat().st_size > MOST_BYTES:
        raise ArenaError(f"{options.output} has {options.output.stat().st_size} bytes; at most {MOST_BYTES} are wanted")


if __name__ == "__main__":
    run(main, Options)
