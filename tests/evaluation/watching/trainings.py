"""A training that saves checkpoints, and evaluations of them that only pretend."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.watcher import Ledger, Outcome, Verdict, Watched, Watcher
from isaaclab_arena.interfaces.environment import Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from tests.checkpoints.written import rsl_rl
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment

ARCHIVE = rsl_rl(0)["model_100.pt"]
DONE = Outcome(verdict=Verdict.DONE)
FAILED = Outcome(verdict=Verdict.FAILED, reason="its process ended with -9")


class KilledError(BaseException):
    """Ends a watcher as ``kill -9`` does: nothing that it holds in memory is written."""


class Clock:
    """A clock that only the test moves on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Evaluations:
    """Pretends to evaluate, and remembers what it was asked for.

    Attributes:
        outcomes: What comes of the first evaluations, in order; all others are done.
        before: What happens during each evaluation.
        asked: The steps, in order.
    """

    outcomes: Sequence[Outcome] = ()
    before: Callable[[Checkpoint, Path], None] = lambda checkpoint, directory: None
    asked: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, checkpoint: Checkpoint, directory: Path) -> Outcome:
        with self._lock:
            number = len(self.asked)
            self.asked.append(checkpoint.step)
        self.before(checkpoint, directory)
        return self.outcomes[number] if number < len(self.outcomes) else DONE


def save(training: Path, *steps: int, content: bytes = ARCHIVE) -> None:
    training.mkdir(exist_ok=True)
    for step in steps:
        (training / f"model_{step}.pt").write_bytes(content)


def watcher_of(
    directory: Path, evaluations: Evaluations, *, now: Callable[[], float] | None = None, **watched
) -> Watcher:
    """Return a watcher of the training in ``directory/training`` that writes into ``directory/watch``."""
    what = Watched(training=directory / "training", **watched)
    return Watcher(watched=what, ledger=Ledger(directory / "watch"), evaluate=evaluations, now=now or Clock())


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


class CalledBuilder(CoinBuilder):
    """Builds `CalledEnvironment`."""

    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> CoinEnvironment:
        del device, num_threads
        return CalledEnvironment(config, num_envs)


HEADS = {0: 0.1, 50: 0.5, 100: 0.95}
"""How often the coins of each checkpoint show heads."""


def call_heads(observation, checkpoint_path: str = "", heads: float = 0.0):
    """A policy that says how often the coin shows heads: what its checkpoint has learned, or what it is told."""
    learned = int(Path(checkpoint_path).stem.removeprefix("model_")) if checkpoint_path else None
    return torch.full((len(observation["policy"]["clock"]), 2), heads if learned is None else HEADS[learned])
