"""Measure the cost of a live page and of a tracker during a run.

Runs the same job in this process with both and with neither, in turn. The CPU seconds of the two threads are those of
their own clocks, because whole runs differ by more.
"""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, median, memory_directory, run, timed
from isaaclab_arena.evaluation.eval_runner import main as evaluate

THREADS = ("report", "tracking")
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    repeats: int = 2  # Runs of each kind.
    episodes: int = 12_000  # Episodes of each run, which must last more than a minute: the first page comes after 30 s.


@dataclass(frozen=True, kw_only=True)
class Run(Timing):
    """The time of a run, and the CPU seconds of its two threads."""

    report_s: float
    tracking_s: float

    @property
    def share(self) -> float:
        """CPU seconds of the two threads over the wall time."""
        return (self.report_s + self.tracking_s) / self.wall_s


@contextmanager
def thread_clocks() -> Iterator[dict[str, float]]:
    """Read the CPU clocks of the two threads repeatedly until the ``with`` block ends [s]."""
    found: dict[str, float] = dict.fromkeys(THREADS, 0.0)
    closing = threading.Event()

    def watch() -> None:
        while not closing.wait(_LOOK_S):
            for thread in threading.enumerate():
                if thread.name in THREADS and thread.ident is not None:
                    found[thread.name] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        closing.set()
        watching.join()


def run_once(options: Options, *, is_shown: bool) -> Run:
    """Run the job once."""
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 8},
        "policy_type": "scripted",
        "num_episodes": options.episodes,
    }
    document = {"jobs": [job], **({"tracking": ["tensorboard"]} if is_shown else {})}
    with tempfile.TemporaryDirectory(prefix="live_cost_", dir=memory_directory()) as name, thread_clocks() as clocks:
        jobs = Path(name) / "jobs.json"
        jobs.write_text(json.dumps(document), encoding="utf-8")
        arguments = ["--eval_jobs_config", str(jobs), "--output_dir", f"{name}/out", "--no_dataset"]
        took = timed(partial(evaluate, arguments if is_shown else [*arguments, "--no_report"]))
    return Run(**vars(took), report_s=clocks["report"], tracking_s=clocks["tracking"])


def main(options: Options) -> None:
    """Run both kinds in turn, and write the page."""
    page = Page("live_cost", "What it costs a run to show itself", options)
    run_once(Options(episodes=8), is_shown=True)
    calls = {"neither": partial(run_once, options, is_shown=False), "both": partial(run_once, options, is_shown=True)}
    table = Table("shown by", "wall s", "CPU s", "page, CPU s", "TensorBoard, CPU s", "both / wall")
    for name, runs in in_turn(calls, options.repeats).items():
        figures = [f"{median(runs, figure):.2f}" for figure in ("wall_s", "cpu_s", "report_s", "tracking_s")]
        table.add(name, *figures, f"{100 * median(runs, 'share'):.2f} %")
    text = f"""\
`reach`, scripted, 8 env slots, {options.episodes:,} episodes, no recording. Medians of wall and CPU seconds over
{options.repeats} runs of each kind. The page is written every 30 seconds, TensorBoard's files every 10, and both more
rarely where that would be more than one percent of the time. The page at the end of a run is not counted."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
