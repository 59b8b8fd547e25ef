"""Measure what evaluation takes from training, and the start: ``python benchmarks/training_evaluation.py``.

Runs the training command as a user types it, with the task's own interval of evaluations and without any, and times it
from outside. The first start fills the disk cache and is not counted.
"""

import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from training_processes import HERE, RANK, ROOT, Training, machine, told

from isaaclab_arena.training.settings.config import EvaluationConfig
from isaaclab_arena.training.settings.documents import default_document, merged, read_training, task_document

RESULTS = HERE / "results" / "training_evaluation.md"
TRAIN = (sys.executable, "-m", "isaaclab_arena.training.train")
WITHOUT = "evaluation.interval=0"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        task: What is trained.
        intervals: Evaluations of a run; it is that many of the task's intervals long.
        rounds: Runs with evaluations, each beside one without.
        starts: Starts to the first iteration.
        output: Where the table goes; by default the committed one.
    """

    task: str = "cartpole"
    intervals: int = 2
    rounds: int = 3
    starts: int = 3
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the command took.

    Attributes:
        wall_s: From the command to its end [s].
        cpu_s: CPU time of its process [s].
        first_s: From the command to the end of the first iteration [s].
        evaluations_s: Time of each evaluation [s].
        iterations_s: Time of all iterations [s].
    """

    wall_s: float
    cpu_s: float
    first_s: float
    evaluations_s: tuple[float, ...]
    iterations_s: float

    @property
    def share(self) -> float:
        """Evaluation's share of what training takes [%]."""
        return 100 * sum(self.evaluations_s) / (sum(self.evaluations_s) + self.iterations_s)


def run(task: str, *words: str) -> Run:
    """Train, one process on one thread, and read what it has written down."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, task, "--num_threads", "1", "--log_root", folder, "--run_directory", f"{folder}/run", *words]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # The file's time is what the clock says.
        began = time.time()
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        progress = Path(folder) / "run" / "progress.csv"
        while not progress.exists() and process.poll() is None:
            time.sleep(0.01)
        first_s = time.time() - began
        if process.wait() != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}; run it to see why")
        ended = time.time()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        with progress.open(newline="", encoding="utf-8") as file:
            measures = [(row["measure"], float(row["value"])) for row in csv.DictReader(file)]
    return Run(
        wall_s=ended - began,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        first_s=first_s,
        evaluations_s=tuple(value for name, value in measures if name == "Perf/evaluation_time"),
        iterations_s=sum(value for name, value in measures if name in {"Perf/collection_time", "Perf/learning_time"}),
    )


def started(task: str) -> dict[str, float]:
    """Return what a rank needs before its first iteration [s], by part."""
    training = Training([*RANK, task, "--num_threads", "1"])
    training.close()
    start = training.said["start"]
    return {"imports_s": training.ready_s - sum(start.values()), **start}


def settings_of(task: str) -> EvaluationConfig:
    """Return how a task is evaluated where the user says nothing."""
    return read_training(merged(default_document(), task_document(task)), task=task, source=task).evaluation


def main(options: Options) -> None:
    where = machine()
    evaluation = settings_of(options.task)
    num_iterations = options.intervals * evaluation.interval
    iterations = f"agent.max_iterations={num_iterations}"
    run(options.task, "agent.max_iterations=1", WITHOUT)
    first = [run(options.task, "agent.max_iterations=1", WITHOUT) for _ in range(options.starts)]
    parts = [started(options.task) for _ in range(options.starts)]
    withs, withouts = [], []
    for _ in range(options.rounds):
        withs.append(run(options.task, iterations))
        withouts.append(run(options.task, iterations, WITHOUT))
        print(f"{withs[-1].share:.1f} %", flush=True)
    by_cpu = [100 * (one.cpu_s - other.cpu_s) / one.cpu_s for one, other in zip(withs, withouts, strict=True)]
    imports, environment, networks = (
        told([part[name] for part in parts]) for name in ("imports_s", "environment_s", "networks_s")
    )
    per_iteration_ms = 1000 * statistics.median(one.iterations_s for one in withs) / num_iterations
    text = f"""# What evaluation takes from training, and the start

    python benchmarks/training_evaluation.py --task {options.task}

{where}.
`{options.task}` for {num_iterations} iterations with its own settings, one process on one thread, with an
evaluation of {evaluation.num_episodes} episodes every {evaluation.interval} iterations and without. Medians, with the
smallest and the largest, of {options.rounds} runs and {options.starts} starts.

| measure | figure |
| --- | ---: |
| an iteration | {per_iteration_ms:,.0f} ms |
| an evaluation | {told([seconds for one in withs for seconds in one.evaluations_s])} s |
| evaluation's share of iterations and evaluations | {told([one.share for one in withs], 1)} % |
| CPU seconds of a whole run, with evaluation | {told([one.cpu_s for one in withs], 1)} |
| CPU seconds of a whole run, without | {told([one.cpu_s for one in withouts], 1)} |
| evaluation's share of them | {told(by_cpu, 1)} % |
| start: from the command to the end of the first iteration | {told([one.first_s for one in first])} s |
| of which Python and its imports | {imports} s |
| of which the environment | {environment} s |
| of which networks | {networks} s |
| CPU seconds of a run of one iteration, with its export | {told([one.cpu_s for one in first])} |

The share is that of a policy that has been trained so far as this run trains it; one that keeps its episodes going
longer takes longer to evaluate.
"""
    print(text)
    output = options.output or RESULTS
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
