"""A training that saves checkpoints, and evaluations of them that only pretend."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.learning_curve import Point
from isaaclab_arena.interfaces.environment import Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.results.statistics import ScoredEpisodes, wilson_interval
from tests.analysis.recorded_runs import write_run
from tests.checkpoints.written import rsl_rl
from tests.fakes import CoinEnvironment

ARCHIVE = rsl_rl(0)["model_100.pt"]
DONE, UNFINISHED, REFUSED, INTERRUPTED, KILLED = 0, 1, 2, 130, -9
"""Exit codes of the runner."""


class KilledError(BaseException):
    """Ends a watch as ``kill -9`` does: nothing that it holds in memory is written."""


@dataclass
class Evaluations:
    """Pretends to evaluate, and remembers the steps."""

    exit_codes: Sequence[int] = ()  # of the first evaluations, in order; all others are done
    # What an evaluation does; by default it writes a run of one job with one success.
    play: Callable[[Checkpoint, Path, int], object] | None = None
    asked: list[int] = field(default_factory=list)
    asked_again: list[int] = field(default_factory=list)  # the steps whose other episodes were evaluated

    def __call__(self, checkpoint: Checkpoint, directory: Path, seed_offset: int) -> int:
        number = len(self.asked) + len(self.asked_again)
        (self.asked_again if seed_offset else self.asked).append(checkpoint.step)
        if self.play is not None:
            self.play(checkpoint, directory, seed_offset)
        exit_code = self.exit_codes[number] if number < len(self.exit_codes) else DONE
        if self.play is None and exit_code == DONE:
            played(checkpoint, directory)
        return exit_code


def played(checkpoint: Checkpoint, directory: Path, outcomes: str = "s", **how) -> None:
    """Write the run of a checkpoint anew."""
    shutil.rmtree(directory, ignore_errors=True)
    write_run_of_checkpoint(directory, checkpoint.step, {"reach": outcomes}, **how)


def save(training: Path, *steps: int, content: bytes = ARCHIVE) -> None:
    training.mkdir(exist_ok=True)
    for step in steps:
        (training / f"model_{step}.pt").write_bytes(content)


class CalledEnvironment(CoinEnvironment):
    """A coin of which the policy says how often it shows heads."""

    _toss = torch.empty(0)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {**super().draw_conditions(generator), "coin.toss": generator.random()}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        if not len(self._toss):
            self._toss = torch.zeros(self.num_envs)
        self._toss[env_ids] = torch.tensor([float(str(each["coin.toss"])) for each in conditions])
        return super().reset(env_ids, conditions)

    def step(self, action: torch.Tensor) -> Step:
        self._heads = self._toss < action[:, 0]
        return super().step(action)


HEADS = {0: 0.1, 50: 0.5, 100: 0.95}
"""How often the coins of each checkpoint show heads."""


def call_heads(observation, checkpoint_path: str = "", heads: float = 0.0):
    """A policy that says how often the coin shows heads: what its checkpoint has learned, or what it is told."""
    learned = int(Path(checkpoint_path).stem.removeprefix("model_")) if checkpoint_path else None
    return torch.full((len(observation["policy"]["clock"]), 2), heads if learned is None else HEADS[learned])


def point(step: int, successes: int, scored: int = 100, job: str = "reach", *, is_baseline: bool = False) -> Point:
    interval = wilson_interval(successes, scored)
    assert interval is not None
    return Point(
        job=job,
        step=step,
        successes=successes,
        scored=scored,
        distinct=scored,
        success_rate=successes / scored,
        interval=interval,
        episodes=ScoredEpisodes(
            success=np.arange(scored) < successes, conditions=[f"{job} {index}" for index in range(scored)]
        ),
        is_baseline=is_baseline,
    )


def write_run_of_checkpoint(
    directory: Path, step: int, jobs: dict[str, str], *, moved: dict[int, float] | None = None
) -> None:
    """Write the run of a checkpoint, of jobs with outcomes; some episodes are moved to start from another place."""
    named = {f"{job}-{step}": outcomes for job, outcomes in jobs.items()}
    write_run(directory, named, swept={"checkpoint_step": step}, moved=moved, own_starts=True)
