"""Measure the cost of films beside their job.

Runs the same episodes without films, with films of two of them and of all, and with films of a recorder that draws a
whole frame of every control step in the loop. The runs take turns in one process, the physics on one thread.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.gym_environments import DRAWING, DRAWING_MS, STEP_MS
from benchmarks.harness.measure import (
    Page,
    PageOptions,
    Table,
    Timing,
    in_turn,
    median,
    memory_directory,
    ratios,
    run,
    timed,
    waited_for_core_s,
)
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.video import FilmThreads, VideoFile, VideoRecorder
from isaaclab_arena.sim.backend import VisibleWorld
from isaaclab_arena.sim.warp_cameras import Camera, RayTracer

ENVIRONMENT = "lift_object"
POLICY = "scripted"
NUM_ENVS = 8
WITHOUT = "none"
UNITS = ("cpu_s", "wall_s", "idle_cores_s")
IN_THE_LOOP = "all, a whole frame of every step, in the loop"


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    repeats: int = 3  # Runs of each kind.
    episodes: int = 50  # Episodes of each run.
    only_two: bool = False  # Measure films of two episodes only, onto a page of their own, in a minute.


@dataclass(frozen=True, kw_only=True)
class LoopTiming(Timing):
    """The duration of a run."""

    idle_cores_s: float  # Wall time less the waiting for a core: the time if cores are idle [s].


class LoopRecorder(Observer):
    """Draws and encodes a whole frame of every control step before the loop goes on."""

    def __init__(self, directory: Path, environment: Any) -> None:
        self._directory = directory
        self._backend = environment.backend
        self._files: dict[int, VideoFile] = {}
        camera = Camera(name=VIEWPORT, width=320, height=240)
        self._tracer = RayTracer(self._backend.model, [camera], shadows=True)

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Open videos and draw their first frame."""
        del observation
        for start in starts:
            path = self._directory / f"{start.episode.episode_index}.mp4"
            rate = 1 / environment.control_dt
            self._files[start.env_id] = VideoFile(path, frames_per_second=rate, title=path.stem)
            self._add(start.env_id)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Draw the next frame of every video."""
        del environment, transition
        for env_id in self._files:
            self._add(env_id)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Complete a video."""
        del environment
        self._files.pop(record.env_id).finish()

    def _add(self, env_id: int) -> None:
        world = VisibleWorld.of(*self._backend.visible_world(env_id))
        self._files[env_id].add(self._tracer.render(world)[VIEWPORT])


def run_once(
    environment: Environment, number: int, recorder_in: Callable[[Path], Observer] | None, *, policy: str = POLICY
) -> LoopTiming:
    """Run episodes, filmed by a recorder made for a directory, and return their duration."""
    with tempfile.TemporaryDirectory(prefix="films_", dir=memory_directory()) as name:
        recorders = [] if recorder_in is None else [recorder_in(Path(name))]

        def film() -> None:
            rollout(environment, make_policy(policy), episodes(number), recorders)
            for recorder in recorders:
                recorder.close()

        waited_s = waited_for_core_s()
        took = timed(film)
        waited_s = waited_for_core_s() - waited_s
        return LoopTiming(wall_s=took.wall_s, cpu_s=took.cpu_s, idle_cores_s=took.wall_s - waited_s)


def recorder_of(options: VideoOptions, directory: Path) -> Observer:
    """Return a recorder with a thread for each core."""
    return VideoRecorder(directory, "films", options, threads=FilmThreads(default_num_threads()))


def films_of_gym(options: Options) -> Table:
    """Film two episodes of an external environment by its own camera, and return the table."""
    environment = build(f"gym:{DRAWING}", NUM_ENVS)
    drawn: dict[str, int] = {}

    def once(name: str, recorder_in: Callable[[Path], Observer] | None) -> LoopTiming:
        before = environment.pictures_drawn
        took = run_once(environment, options.episodes, recorder_in, policy="random_action")
        drawn[name] = environment.pictures_drawn - before
        return took

    two = VideoOptions(camera=True, first_episodes=2)
    recorders = {WITHOUT: None, f"2 of {options.episodes}, 10 frames a second": partial(recorder_of, two)}
    calls = {name: partial(once, name, each) for name, each in recorders.items()}
    runs = in_turn(calls, options.repeats, warm_up=1)
    table = Table(f"films of `gym:{DRAWING.partition(':')[2]}`", "pictures drawn", "CPU s", "CPU / none", "wall / none")
    for name, measured in runs.items():
        over = (f"{statistics.median(ratios(measured, runs[WITHOUT], unit)):.2f}" for unit in UNITS[:2])
        table.add(name, f"{drawn[name]:,}", f"{median(measured, 'cpu_s'):.2f}", *over)
    environment.close()
    return table


def main(options: Options) -> None:
    """Film episodes in every way, and write the page."""
    torch.set_num_threads(1)
    page = Page("films_of_two" if options.only_two else "films", "What films cost", options)
    environment = build(ENVIRONMENT, NUM_ENVS)
    # Warp loads with the first film of a process.
    run_once(environment, 1, partial(recorder_of, VideoOptions(viewport=True)))
    films = {
        f"2 of {options.episodes}, 10 frames a second": VideoOptions(viewport=True, first_episodes=2),
        "all, 10 frames a second": VideoOptions(viewport=True),
        "all, 20 frames a second: every step": VideoOptions(viewport=True, frames_per_second=20),
    }
    recorders: dict[str, Callable[[Path], Observer] | None] = {WITHOUT: None}
    recorders |= {name: partial(recorder_of, wanted) for name, wanted in films.items()}
    recorders[IN_THE_LOOP] = partial(LoopRecorder, environment=environment)
    if options.only_two:
        recorders = dict(list(recorders.items())[:2])
    calls = {name: partial(run_once, environment, options.episodes, each) for name, each in recorders.items()}
    runs = in_turn(calls, options.repeats)
    table = Table("films", "CPU s", "wall s", "CPU / none", "wall / none", "idle cores / none", "in the loop / CPU")
    for name, measured in runs.items():
        table.add(
            name,
            *(f"{median(measured, unit):.2f}" for unit in ("cpu_s", "wall_s")),
            *(f"{statistics.median(ratios(measured, runs[WITHOUT], unit)):.2f}" for unit in UNITS),
            f"{statistics.median(ratios(runs[IN_THE_LOOP], measured, 'cpu_s')):.1f}" if IN_THE_LOOP in runs else "",
        )
    text = f"""\
`{ENVIRONMENT}`, {POLICY}, {NUM_ENVS} env slots, physics on one thread, {options.episodes} episodes a run, viewport of
320 x 240 with shadows, no recording. Medians over {options.repeats} runs, ratios of neighbours in time. The two seconds
in which a process loads Warp with its first film are left out. Wall times depend on how many cores are idle, CPU
seconds do not. `idle cores` compares wall times without what the loop waited for a core that others had: where nothing
else runs, films cost at most that, because on a busy machine a film's thread may lose its core in the middle of what
the loop waits for."""
    if not options.only_two:
        page.write(text, table)
        return
    elsewhere = f"""\
Films of what an environment made elsewhere observes: a step takes {STEP_MS:.0f} ms of CPU time and a picture
{DRAWING_MS:.0f}, `random_action` looks at none, and only those of the two episodes that are filmed are drawn."""
    page.write(text, table, elsewhere, films_of_gym(options))


if __name__ == "__main__":
    run(main, Options)
