"""Run trainings that wait between their turns, so that several can be measured within the same minutes."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import ROOT
from benchmarks.harness.measure import timed
from benchmarks.harness.workers import Worker, module


class LearningStopwatch:
    """Counts the CPU time of an algorithm's updates."""

    def __init__(self, algorithm: Any) -> None:
        self._update = algorithm.update
        self._learning_cpu_s = 0.0
        algorithm.update = self._timed_update

    def turn(self, iterate: Callable[[], object]) -> dict[str, float]:
        """Run iterations; return their time, and ``learning_cpu_s``, the CPU time of their updates alone [s]."""
        self._learning_cpu_s = 0.0
        took = timed(iterate)
        return {**vars(took), "learning_cpu_s": self._learning_cpu_s}

    def _timed_update(self) -> Any:
        began = time.process_time()
        losses = self._update()
        self._learning_cpu_s += time.process_time() - began
        return losses


RANK = tuple(module("benchmarks.training.rank"))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The time of some iterations."""

    wall_s: float  # Time of the slowest rank [s].
    cpu_s: float  # CPU time of all ranks, with all their threads [s].
    learning_cpu_s: float  # CPU time of learning; the rest is sampling [s].
    env_steps: int  # Control steps of all env slots of all ranks.
    ranks: tuple[Mapping[str, Any], ...]  # Answer of each rank.

    @property
    def per_s(self) -> float:
        """Control steps per second."""
        return self.env_steps / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        """Control steps per CPU second of all ranks together."""
        return self.env_steps / self.cpu_s

    @property
    def samples_per_cpu_s(self) -> float:
        """Control steps per CPU second of taking samples."""
        return self.env_steps / (self.cpu_s - self.learning_cpu_s)


class Training:
    """One training run: its processes, which wait for the number of iterations of a turn."""

    def __init__(self, command: Sequence[str], *, world_size: int = 1, torch_threads: int | None = 1) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        began = time.perf_counter()
        variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        variables |= {"PYTHONPATH": str(ROOT), "GIT_PYTHON_REFRESH": "quiet"}
        if torch_threads is not None:
            variables["OMP_NUM_THREADS"] = str(torch_threads)
        if world_size > 1:
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
        numbers = ({} if world_size == 1 else {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(world_size))
        self._ranks = [Worker(command, variables | number) for number in numbers]
        # The first rank's facts, and the time to them.
        hello = [rank.answer() for rank in self._ranks]
        self.hello, self.ready_s = hello[0], time.perf_counter() - began

    def turn(self, iterations: int) -> Turn:
        """Do some iterations on all ranks, and return their time."""
        self.begin(iterations)
        return self.end()

    def begin(self, iterations: int) -> None:
        """Begin some iterations on all ranks."""
        for rank in self._ranks:
            rank.ask(iterations)

    def end(self) -> Turn:
        """Wait for the end of the iterations, and return their time."""
        answers = tuple(rank.answer() for rank in self._ranks)
        return Turn(
            wall_s=max(answer["wall_s"] for answer in answers),
            cpu_s=sum(answer["cpu_s"] for answer in answers),
            learning_cpu_s=sum(answer["learning_cpu_s"] for answer in answers),
            env_steps=answers[0]["env_steps"],
            ranks=answers,
        )

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.end_input()
        for rank in self._ranks:
            rank.close()
