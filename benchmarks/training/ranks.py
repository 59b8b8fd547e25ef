"""Measure training on two ranks against one on the same machine.

All take turns within one run, each on one thread of torch a rank:

- 1 rank x n: one process, one thread of physics.
- 2 ranks x n: two of them, which exchange gradients with every mini-batch; twice the samples.
- 1 rank x 2n: one process with the samples of both, two threads of physics.
- apart: two independent processes of n env slots. It is the value of two cores that share caches, memory and clock, and
  the limit for two ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, ratios, run, spread, values
from benchmarks.training.processes import RANK, Training, Turn

WARM_UP_ITERATIONS = 2
ONE, TWO, TWICE, APART = "1 rank x n", "2 ranks x n", "1 rank x 2n, 2 physics threads", "apart: twice 1 rank x n"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A task with the env slots of a rank and the iterations of a turn."""

    task: str
    num_envs: int
    iterations: int


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    rounds: int = 5  # Turns of everything.


TASKS = (
    Measured(task="cartpole", num_envs=64, iterations=8),
    Measured(task="velocity_go1", num_envs=128, iterations=3),
)


def both(first: Turn, second: Turn) -> Turn:
    """Return two simultaneous turns as one."""
    return Turn(
        wall_s=max(first.wall_s, second.wall_s),
        cpu_s=first.cpu_s + second.cpu_s,
        learning_cpu_s=first.learning_cpu_s + second.learning_cpu_s,
        env_steps=first.env_steps + second.env_steps,
        ranks=first.ranks + second.ranks,
    )


def measure(measured: Measured, rounds: int) -> dict[str, list[Turn]]:
    """Measure all in turn."""
    iterations, sizes = measured.iterations, {ONE: (1, 1), TWO: (1, 2), TWICE: (2, 1), APART: (1, 1)}
    trainings = {}
    for name, (times, world_size) in sizes.items():
        words = ("--num_envs", str(times * measured.num_envs), "--num_threads", str(times))
        trainings[name] = Training([*RANK, measured.task, *words], world_size=world_size)
    for training in trainings.values():
        training.turn(WARM_UP_ITERATIONS)

    def at_once() -> Turn:
        pair = (trainings[ONE], trainings[APART])
        for training in pair:
            training.begin(iterations)
        return both(*(training.end() for training in pair))

    calls: dict[str, Callable[[], Turn]] = {
        name: lambda training=trainings[name]: training.turn(iterations) for name in (ONE, TWO, TWICE)
    }
    turns = in_turn({**calls, APART: at_once}, rounds)
    for training in trainings.values():
        training.close()
    return turns


def main(options: Options) -> None:
    """Measure every task, and write the page."""
    page = Page("training_ranks", "Training on two ranks against one", options)
    speeds = ("control steps per second", "per CPU second", "per second, against 1 rank", "per CPU second")
    table = Table("task", "what", *speeds, words=2)
    figures = ("per_s", "per_cpu_s")
    for measured in TASKS:
        turns = measure(measured, options.rounds)
        for name, those in turns.items():
            against = ["" if name == ONE else spread(ratios(those, turns[ONE], figure)) for figure in figures]
            speed = (spread(values(those, figure), 0) for figure in figures)
            table.add(f"`{measured.task}`, n = {measured.num_envs}", name, *speed, *against)
    text = f"""\
Control steps of all ranks over whole iterations, samples and learning. Medians of {options.rounds} turns, with the
smallest and the largest; ratios are those of neighbouring turns. Two ranks can reach what two processes reach that know
nothing of each other; on a machine where other programs run, both are far from 2 by wall time, and the CPU seconds say
what the exchange itself costs."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
