"""Run trainings that wait between their turns, so that several can be measured within the same minutes."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import ROOT
from benchmarks.harness.workers import Worker, module

RANK = tuple(module("benchmarks.training.rank"))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What some iterations took."""

    wall_s: float  # Time of the slowest rank [s].
    cpu_s: float  # CPU time of all ranks, with all their threads [s].
    learning_cpu_s: float  # Of which learning; the rest is taking samples [s].
    env_steps: int  # Control steps of all env slots of all ranks.
    ranks: tuple[Mapping[str, Any], ...]  # What each rank said.

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
    """One training run: its processes, which wait until they are asked to go on.

    Args:
        command: Program and arguments of a rank.
        world_size: Number of ranks.
        torch_threads: Threads that torch may use in each of them, None for its own choice.

    Attributes:
        said: What the first rank said of itself at the start.
        ready_s: From the start of the processes to that [s].
    """

    def __init__(self, command: Sequence[str], *, world_size: int = 1, torch_threads: int | None = 1) -> None:
        port, began = str(_free_port()), time.perf_counter()
        variables = {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            **({} if torch_threads is None else {"OMP_NUM_THREADS": str(torch_threads)}),
            "PYTHONPATH": str(ROOT),
            "GIT_PYTHON_REFRESH": "quiet",
        }
        self._ranks = [
            Worker(command, variables if world_size == 1 else variables | _rank_variables(rank, world_size, port))
            for rank in range(world_size)
        ]
        said = [rank.answer() for rank in self._ranks]
        self.said, self.ready_s = said[0], time.perf_counter() - began

    def turn(self, iterations: int) -> Turn:
        """Do some iterations on all ranks, and return what they took."""
        self.begin(iterations)
        return self.end()

    def begin(self, iterations: int) -> None:
        """Let all ranks begin some iterations."""
        for rank in self._ranks:
            rank.ask(iterations)

    def end(self) -> Turn:
        """Wait until the iterations that were begun are done, and return what they took."""
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


def _rank_variables(rank: int, world_size: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
