"""Play episodes of different lengths with all env slots waiting for every reset, and with steps meanwhile.

Chunks of eight actions, pictures of two cameras, each env slot in a worker of its own: robosuite's Lift, and the first
task of LIBERO's spatial suite. Episodes take 24 to 68 control steps, so they end at different times.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch

from benchmarks.harness.environments import Tally, build, episodes
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run
from isaaclab_arena.environments.gym.builder import STEPS_OF_A_SLOW_RESET
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.interfaces.policy import PolicyBase

CHUNK = 8
LEAST_STEPS, DIFFERENT_LENGTHS = 24, 45


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    robosuite_python: str = ""  # Interpreter with robosuite 1.5.2; without it Lift is left out.
    libero_python: str = ""  # Interpreter with LIBERO's packages; without it LIBERO is left out.
    libero_path: str = ""  # Checkout of LIBERO.
    num_envs: int = 4  # Env slots, each in a worker of its own.
    episodes: int = 16  # Episodes of each run.
    rounds: int = 3  # Runs of each kind, in turn.
    note: str = ""  # Further text of the page.


class PlaysChunks(PolicyBase):
    """Holds still, looks at the pictures of each env slot at the beginning of a chunk, and ends episodes by itself."""

    name: ClassVar[str] = "plays_chunks"

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self._num_envs = 0

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Derive the length of each episode from its index."""
        self._num_envs = env.num_envs
        for start in starts:
            self._left[start.env_id] = LEAST_STEPS + start.episode.episode_index * 37 % DIFFERENT_LENGTHS
            self._made[start.env_id] = 0

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Forget the env slots that rest."""
        del env
        for env_id in env_ids:
            del self._left[env_id], self._made[env_id]

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int]:
        """Return the env slots whose next chunk begins."""
        del env
        return [*starting, *(env_id for env_id, made in self._made.items() if made % CHUNK == 0)]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the actions. Shape: (num_envs, action_dim)."""
        del observation
        for env_id in self._left:
            self._left[env_id] -= 1
            self._made[env_id] += 1
        return torch.zeros(env.num_envs, *env.action_spec.shape)

    def finished(self) -> torch.Tensor:
        """Return the env slots whose episode is over. Shape: (num_envs,), bool."""
        return torch.tensor([self._left.get(env_id) == 0 for env_id in range(self._num_envs)])


@dataclass(frozen=True, kw_only=True)
class Played:
    """Time and occupancy of a run."""

    wall_s: float  # Wall time of all episodes [s].
    busy: float  # Share of the env slots with an episode, over all control steps.


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An environment with its options."""

    heading: str  # Heading on the page.
    name: str  # Registered name.
    options: dict[str, Any] = field(default_factory=dict)  # Its options.


def play(scene: Scene, steps: int, options: Options) -> Played:
    """Play episodes in all env slots of a new environment, after a warm-up of one in each."""
    environment = build(scene.name, options.num_envs, steps_while_starting=steps, **scene.options)
    rollout(environment, PlaysChunks(), episodes(options.num_envs), [])
    tally, began_s = Tally(), time.perf_counter()
    rollout(environment, PlaysChunks(), episodes(options.episodes), [tally])
    took_s = time.perf_counter() - began_s
    environment.close()
    assert tally.count(Outcome.ERROR) == 0
    assert sorted(record.episode.episode_index for record in tally.records) == list(range(options.episodes))
    return Played(wall_s=took_s, busy=tally.busy / tally.steps)


def scenes(options: Options) -> list[Scene]:
    """Return the scenes that have an interpreter."""
    common = {"enable_cameras": True, "environment_variables": {"MUJOCO_GL": "osmesa"}}
    found = []
    if options.robosuite_python:
        own = {"python": options.robosuite_python, **common}
        found.append(Scene(heading="robosuite Lift, two cameras of 84 x 84", name="robosuite:Lift", options=own))
    if options.libero_python:
        own = {"python": options.libero_python, "libero_path": options.libero_path, "camera_size": 128, **common}
        heading = "LIBERO spatial 0, two cameras of 128 x 128"
        found.append(Scene(heading=heading, name="libero:libero_spatial/0", options=own))
    return found


def main(options: Options) -> None:
    """Measure, and write the page."""
    torch.set_num_threads(1)
    page = Page("worker_resets", "Resets beside control steps", options)
    columns = "wall s", "episodes an hour", "of one after the other", "env slots that are busy"
    table = Table("environment", "steps_while_starting", *columns)
    for scene in scenes(options):
        kinds = 0, STEPS_OF_A_SLOW_RESET
        runs = in_turn({steps: partial(play, scene, steps, options) for steps in kinds}, options.rounds)
        for steps, found in runs.items():
            wall_s, ratio = median(found, "wall_s"), statistics.median(ratios(runs[0], found, "wall_s"))
            figures = f"{wall_s:.1f}", f"{3600 * options.episodes / wall_s:.0f}", f"{ratio:.2f}"
            table.add(scene.heading, steps, *figures, f"{100 * median(found, 'busy'):.0f} %")
    num_cores = len(os.sched_getaffinity(0))
    text = f"""\
{options.num_envs} env slots, each in a worker of its own, on {num_cores} cores. A run has {options.episodes} episodes
of 24 to 68 control steps. The policy holds still, and looks at the pictures of every eighth step. With
`steps_while_starting` 0 all env slots wait while one is reset, with {STEPS_OF_A_SLOW_RESET} they make so many control
steps meanwhile. Times are medians over {options.rounds} runs, in turn; ratios, of the wall time, are medians over
neighbouring runs. A reset keeps one core busy: the more cores and env slots there are, the more is waited for with 0.
{options.note}"""
    page.write(text.rstrip(), table)


if __name__ == "__main__":
    run(main, Options)
