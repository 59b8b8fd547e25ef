"""Measure training on two ranks against one on the same machine: ``python benchmarks/training_ranks.py``.

Usage: python benchmarks/training_ranks.py [--rounds 5]

All take turns within one run, each on one thread of torch a rank:

- 1 rank x n: one process, one thread of physics.
- 2 ranks x n: two of them, which exchange gradients with every mini-batch; twice the samples.
- 1 rank x 2n: one process with the samples of both, two threads of physics.
- apart: two processes of n rows that know nothing of each other. It says what two cores are worth here, where they
  share caches, memory and clock, and is the most that two ranks can reach.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro
from training_processes import HERE, RANK, Training, Turn, machine, told

RESULTS = HERE / "results" / "training_ranks.md"
WARM_UP_ITERATIONS = 2
ONE, TWO, TWICE, APART = "1 rank x n", "2 ranks x n", "1 rank x 2n, 2 physics threads", "apart: twice 1 rank x n"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A task with the rows of a rank and the iterations of a turn."""

    task: str
    num_envs: int
    iterations: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        rounds: Turns of everything.
        output: Where the table goes; by default the committed one.
    """

    rounds: int = 5
    output: Path | None = None


TASKS = (
    Measured(task="cartpole", num_envs=64, iterations=8),
    Measured(task="velocity_go1", num_envs=128, iterations=3),
)


def started(task: str, num_envs: int, *, world_size: int = 1, num_threads: int = 1) -> Training:
    command = [*RANK, task, "--num_envs", str(num_envs), "--num_threads", str(num_threads)]
    return Training(command, world_size=world_size)


def both(first: Turn, second: Turn) -> Turn:
    """Return two turns that were made at the same time as one."""
    return Turn(
        wall_s=max(first.wall_s, second.wall_s),
        cpu_s=first.cpu_s + second.cpu_s,
        learning_cpu_s=first.learning_cpu_s + second.learning_cpu_s,
        env_steps=first.env_steps + second.env_steps,
        ranks=first.ranks + second.ranks,
    )


def measure(measured: Measured, rounds: int) -> dict[str, list[Turn]]:
    """Let all take turns."""
    task, num_envs, iterations = measured.task, measured.num_envs, measured.iterations
    trainings = {
        ONE: started(task, num_envs),
        TWO: started(task, num_envs, world_size=2),
        TWICE: started(task, 2 * num_envs, num_threads=2),
    }
    other = started(task, num_envs)
    for training in (*trainings.values(), other):
        training.turn(WARM_UP_ITERATIONS)
    turns: dict[str, list[Turn]] = {name: [] for name in (*trainings, APART)}
    for _ in range(rounds):
        for name, training in trainings.items():
            turns[name].append(training.turn(iterations))
        for training in (trainings[ONE], other):
            training.begin(iterations)
        turns[APART].append(both(trainings[ONE].end(), other.end()))
    for training in (*trainings.values(), other):
        training.close()
    return turns


def rows(measured: Measured, turns: Mapping[str, list[Turn]]) -> Iterator[str]:
    for name, those in turns.items():
        cells = [f"`{measured.task}`, n = {measured.num_envs}", name]
        cells += [told([getattr(turn, of) for turn in those], 0) for of in ("per_s", "per_cpu_s")]
        for of in ("per_s", "per_cpu_s"):
            pairs = zip(those, turns[ONE], strict=True)
            cells.append("" if name == ONE else told([getattr(a, of) / getattr(b, of) for a, b in pairs]))
        yield f"| {' | '.join(cells)} |"


def main(options: Options) -> None:
    where = machine()
    table = [
        "| task | what | control steps per second | per CPU second | per second, against 1 rank | per CPU second |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for measured in TASKS:
        for row in rows(measured, measure(measured, options.rounds)):
            print(row, flush=True)
            table.append(row)
    lines = "\n".join(table)
    text = f"""# Training on two ranks against one

    python benchmarks/training_ranks.py --rounds {options.rounds}

{where}.
Control steps of all ranks over whole iterations, samples and learning. Medians of {options.rounds} turns, with the
smallest and the largest; ratios are those of neighbouring turns. Two ranks can reach what two processes reach that know
nothing of each other; on a machine where other programs run, both are far from 2 by wall time, and the CPU seconds say
what the exchange itself costs.

{lines}
"""
    output = options.output or RESULTS
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
