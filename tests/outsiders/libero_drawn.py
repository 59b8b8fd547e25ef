"""Draws LIBERO's pictures as robosuite does and as workers do, in turn, and fails if a bit differs.

Runs in LIBERO's interpreter: ``MUJOCO_GL=osmesa python libero_drawn.py CHECKOUT SUITE TASK PICTURES SIZE``. It writes
the median CPU time of a picture of each camera in either way [ms].
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
import typing
from pathlib import Path

import numpy as np

ABOVE_WORKER = Path(__file__).parents[2] / "isaaclab_arena" / "environments" / "gym"
CAMERAS = ("agentview", "robot0_eye_in_hand")


def drawn(
    renderer: typing.Any, camera: int, size: int, ways: tuple[typing.Any, typing.Any]
) -> tuple[float, typing.Any]:
    """Draw and read a picture in one way, and return the CPU time that it took [s], and it."""
    draw, read = ways
    began = time.process_time()
    draw(renderer, size, size, camera_id=camera)
    picture = read(renderer, size, size)
    return time.process_time() - began, picture


def main(checkout: Path, suite: str, task: int, pictures: int, size: int) -> None:
    """Play random actions, and draw every picture in both ways."""
    # At the end: modules there have the names of others.
    sys.path.append(str(ABOVE_WORKER))
    reference, seen_geoms = (importlib.import_module(name) for name in ("libero_reference", "worker.rendering"))
    reference.prepare(checkout)
    name = reference.task_name(checkout, suite, task)
    environment = reference.make(checkout, suite, name, size)
    environment.seed(7)
    environment.reset()
    environment.set_init_state(reference.init_states(checkout, suite, name)[0])
    gc.disable()
    renderer = environment.sim._render_context_offscreen
    kind = type(renderer)
    plain = kind.render, kind.read_pixels
    seen_geoms.leave_out_unseen(kind)
    sparing = kind.render, kind.read_pixels
    took: dict[tuple[str, str], list[float]] = {}
    actions = np.random.default_rng(0).uniform(-1, 1, (pictures, 4, 7))
    for action in actions:
        for each in action:
            environment.step(each)
        for camera in CAMERAS:
            number = environment.sim.model.camera_name2id(camera)
            shown = []
            for way, functions in (("robosuite", plain), ("workers", sparing)):
                seconds, picture = drawn(renderer, number, size, functions)
                took.setdefault((camera, way), []).append(seconds)
                shown.append(picture)
            assert np.array_equal(*shown), f"pictures of {camera} differ"
    for (camera, way), seconds in took.items():
        sys.stdout.write(f"{suite} {task}  {camera}  {way}  {1e3 * float(np.median(seconds)):.1f} ms\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], *map(int, sys.argv[3:6]))
