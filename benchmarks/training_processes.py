"""Training runs that wait between their turns, so that several can be measured within the same minutes."""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
RANK = (sys.executable, str(HERE / "training_rank.py"))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What some iterations took.

    Attributes:
        wall_s: Time of the slowest rank [s].
        cpu_s: CPU time of all ranks, with all their threads [s].
        learning_cpu_s: Of which learning; the rest is taking samples [s].
        env_steps: Control steps of all rows of all ranks.
        ranks: What each rank said.
    """

    wall_s: float
    cpu_s: float
    learning_cpu_s: float
    env_steps: int
    ranks: tuple[Mapping[str, Any], ...]

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
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={
                    **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
                    **({} if torch_threads is None else {"OMP_NUM_THREADS": str(torch_threads)}),
                    "PYTHONPATH": str(ROOT),
                    "GIT_PYTHON_REFRESH": "quiet",
                    **({} if world_size == 1 else _ranks(rank, world_size, port)),
                },
            )
            for rank in range(world_size)
        ]
        said = [self._answer(process) for process in self._processes]
        self.said, self.ready_s = said[0], time.perf_counter() - began

    def turn(self, iterations: int) -> Turn:
        """Do some iterations on all ranks, and return what they took."""
        self.begin(iterations)
        return self.end()

    def begin(self, iterations: int) -> None:
        """Let all ranks begin some iterations."""
        for process in self._processes:
            assert process.stdin is not None
            print(iterations, file=process.stdin, flush=True)

    def end(self) -> Turn:
        """Wait until the iterations that were begun are done, and return what they took."""
        answers = tuple(self._answer(process) for process in self._processes)
        return Turn(
            wall_s=max(answer["wall_s"] for answer in answers),
            cpu_s=sum(answer["cpu_s"] for answer in answers),
            learning_cpu_s=sum(answer["learning_cpu_s"] for answer in answers),
            env_steps=answers[0]["env_steps"],
            ranks=answers,
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            # Libraries print what they please; an answer is an object.
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"a rank ended with {process.wait()} without an answer; it has said why on the console")


def machine() -> str:
    """Return what the figures were measured on, for tables."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    load = os.getloadavg()[0]
    return f"{processor}, {os.cpu_count()} cores, load average {load:.1f} at the start, {datetime.now(UTC):%Y-%m-%d}"


def told(values: Sequence[float], digits: int = 2) -> str:
    """Return a median with the smallest and the largest, for tables."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _ranks(rank: int, world_size: int, port: str) -> dict[str, str]:
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
