"""Measure the cost of evaluations in a training, and of its start.

Runs the training command with the task's own interval of evaluations and without any, and times it from outside. The
first start fills the disk cache and does not count.
"""

import csv
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, run, spread, values
from benchmarks.harness.runs import watched
from benchmarks.harness.workers import module
from benchmarks.training.processes import RANK, Training
from isaaclab_arena.training.config import default_document, merged, read_training, task_document

WITHOUT = "evaluation.interval=0"
ITERATION_PARTS = {"Perf/collection_time", "Perf/learning_time"}
POLLING_INTERVAL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    task: str = "cartpole"  # Task of the training.
    intervals: int = 2  # Evaluations of a run; it is that many of the task's intervals long.
    rounds: int = 3  # Runs with evaluations, each beside one without.
    starts: int = 3  # Starts to the first iteration.


@dataclass(frozen=True, kw_only=True)
class Run:
    """Times of one run of the command."""

    wall_s: float  # From the command to its end [s].
    cpu_s: float  # CPU time of its process [s].
    first_s: float  # From the command to the end of the first iteration [s].
    evaluations_s: tuple[float, ...]  # Time of each evaluation [s].
    iterations_s: float  # Time of all iterations [s].

    @property
    def share(self) -> float:
        """Evaluation's share of the training time [%]."""
        return 100 * sum(self.evaluations_s) / (sum(self.evaluations_s) + self.iterations_s)


def train(task: str, *words: str) -> Run:
    """Train in one process on one thread, and read its own measures."""
    with tempfile.TemporaryDirectory(prefix="training_evaluation_") as name:
        progress = Path(name) / "run" / "progress.csv"
        first: list[float] = []

        def note() -> None:
            if not first and progress.exists():
                first.append(time.time())

        places = ("--log_root", name, "--run_directory", progress.parent)
        command = module("isaaclab_arena.training.train", task, "--num_threads", 1, *places, *words)
        one_thread = {"OMP_NUM_THREADS": "1"}
        took = watched(command, Path(name) / "log.txt", one_thread, note=note, interval_s=POLLING_INTERVAL_S)
        with progress.open(newline="", encoding="utf-8") as file:
            measures = [(line["measure"], float(line["value"])) for line in csv.DictReader(file)]
    return Run(
        wall_s=took.wall_s,
        cpu_s=took.cpu_s,
        first_s=first[0] - took.began,
        evaluations_s=tuple(value for measure, value in measures if measure == "Perf/evaluation_time"),
        iterations_s=sum(value for measure, value in measures if measure in ITERATION_PARTS),
    )


def main(options: Options) -> None:
    """Train with evaluations and without, time the start, and write the page."""
    page = Page("training_evaluation", "What evaluation takes from training, and the start", options)
    document = merged(default_document(), task_document(options.task))
    evaluation = read_training(document, task=options.task, source=options.task).evaluation
    num_iterations = options.intervals * evaluation.interval
    once = ("agent.max_iterations=1", WITHOUT)
    first = in_turn({"start": partial(train, options.task, *once)}, options.starts, warm_up=1)["start"]
    parts: dict[str, list[float]] = {}
    for _ in range(options.starts):
        training = Training([*RANK, options.task, "--num_threads", "1"])
        training.close()
        start = training.hello["start"]
        for name, seconds in {"imports_s": training.ready_s - sum(start.values()), **start}.items():
            parts.setdefault(name, []).append(seconds)
    iterations = f"agent.max_iterations={num_iterations}"
    calls = {True: partial(train, options.task, iterations), False: partial(train, options.task, iterations, WITHOUT)}
    withs, withouts = in_turn(calls, options.rounds).values()
    by_cpu = [100 * (one.cpu_s - other.cpu_s) / one.cpu_s for one, other in zip(withs, withouts, strict=True)]
    imports, environment, networks = (spread(parts[f"{name}_s"]) for name in ("imports", "environment", "networks"))
    per_iteration_ms = 1000 * statistics.median(values(withs, "iterations_s")) / num_iterations
    table = Table("measure", "figure")
    for measure, figure in {
        "an iteration": f"{per_iteration_ms:,.0f} ms",
        "an evaluation": f"{spread([seconds for one in withs for seconds in one.evaluations_s])} s",
        "evaluation's share of iterations and evaluations": f"{spread(values(withs, 'share'), 1)} %",
        "CPU seconds of a whole run, with evaluation": spread(values(withs, "cpu_s"), 1),
        "CPU seconds of a whole run, without": spread(values(withouts, "cpu_s"), 1),
        "evaluation's share of them": f"{spread(by_cpu, 1)} %",
        "start: from the command to the end of the first iteration": f"{spread(values(first, 'first_s'))} s",
        "of which Python and its imports": f"{imports} s",
        "of which the environment": f"{environment} s",
        "of which networks": f"{networks} s",
        "CPU seconds of a run of one iteration, with its export": spread(values(first, "cpu_s")),
    }.items():
        table.add(measure, figure)
    text = f"""\
`{options.task}` for {num_iterations} iterations with its own settings, one process on one thread, with an evaluation of
{evaluation.num_episodes} episodes every {evaluation.interval} iterations and without. Medians, with the smallest and
the largest, of {options.rounds} runs and {options.starts} starts."""
    share = """\
The share is that of a policy that has been trained so far as this run trains it; one that keeps its episodes going
longer takes longer to evaluate."""
    page.write(text, table, share)


if __name__ == "__main__":
    run(main, Options)
