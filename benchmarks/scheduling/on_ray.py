"""Measure what a Ray cluster on this machine costs over torchrun: its start, and the time of the episodes.

Both run the same job with the same ranks, dynamically assigned, and take turns. The policy waits in each step, as for a
network on a GPU, so an episode takes as long on a busy engine as on an idle one. Under Ray the ranks write on their
node, and the episodes come home as bytes.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.evaluations import evaluate, job_reports
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table, spread
from benchmarks.harness.timing import in_turn, median, ratios, values

STEPS = 120
"""Control steps of an episode of `reach` in which nobody moves."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    pairs: int = 3  # Runs under torchrun, each beside one on Ray.
    ranks: int = 2  # Ranks of a run.
    episodes: int = 60  # Episodes of a run.
    episode_s: float = 1.0  # What the policy waits in each [s].
    # A file of runs that were made before, which count too; those of this time are added to it.
    runs: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run took."""

    start_s: float  # From the command to the start of the first job [s].
    playing_s: float  # From there to the end of the last job [s].
    end_s: float  # From there to the end of the command: tables, report, and the end of Ray [s].
    cpu_s: float  # CPU time of the command and of what it has waited for [s].

    @property
    def whole_s(self) -> float:
        """From the command to its end [s]."""
        return self.start_s + self.playing_s + self.end_s


def jobs_document(options: Options) -> dict[str, Any]:
    """Return the job file."""
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 1},
        "policy_type": "benchmarks.scheduling.paced_policy.PacedPolicy",
        "policy_config_dict": {"answer_s": options.episode_s / STEPS},
        "num_episodes": options.episodes,
    }
    return {"jobs": [job]}


def measure(options: Options, *, on_ray: bool) -> Run:
    """Run the job file once, and read from its reports when its job ran."""
    with tempfile.TemporaryDirectory(prefix="on_ray_") as name:
        place, threads = Path(name), ("--num_threads", "1", "--device", "cpu")
        # The node's directory is not the run's, as on another machine.
        cluster = ("--cluster", "ray", "--ray_address", "local", "--num_ranks", str(options.ranks), "--node_dir", name)
        words = cluster if on_ray else ("--assignment", "dynamic")
        variables = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.getcwd()}  # noqa: PTH109
        ranks = 1 if on_ray else options.ranks
        took = evaluate(place, jobs_document(options), *threads, *words, ranks=ranks, variables=variables)
        reports = job_reports(place)
        (summary,) = json.loads((place / "out" / "results.json").read_text(encoding="utf-8"))["jobs"]
    assert summary["episodes"] == options.episodes, "not every episode was played"
    assert {report["rank"] for report in reports} == set(range(options.ranks)), "not every rank has played"
    began, ended = (
        choose(datetime.fromisoformat(report[name]).timestamp() for report in reports)
        for choose, name in ((min, "started_at"), (max, "ended_at"))
    )
    return Run(start_s=began - took.began, playing_s=ended - began, end_s=took.ended - ended, cpu_s=took.cpu_s)


def main(options: Options) -> None:
    """Measure torchrun and Ray in turn, and write the page."""
    page = Page("cluster", "A Ray cluster beside torchrun", options, "ray", "torch")
    calls: dict[str, Callable[[], Run]] = {
        "torchrun": partial(measure, options, on_ray=False),
        "Ray": partial(measure, options, on_ray=True),
    }
    found = _with_earlier(in_turn(calls, options.pairs), options.runs)
    torchrun, ray = found["torchrun"], found["Ray"]
    table = Table("", "start s", "episodes s", "tables and end s", "whole run s", "CPU s of the command")
    for name, runs in found.items():
        figures = ("start_s", "playing_s", "end_s", "whole_s", "cpu_s")
        table.add(name, *(f"{median(runs, figure):.1f}" for figure in figures))
    later = [b - a for a, b in zip(values(torchrun, "start_s"), values(ray, "start_s"), strict=True)]
    longer = [100 * (ratio - 1) for ratio in ratios(ray, torchrun, "playing_s")]
    whole = [b - a for a, b in zip(values(torchrun, "whole_s"), values(ray, "whole_s"), strict=True)]
    text = f"""\
{options.episodes} episodes of {options.episode_s:g} s on {options.ranks} ranks, one env slot each. Medians of
{len(ray)} pairs of runs. The start is from the command to the beginning of the first job, and on Ray includes the start
of a new cluster on this machine (`--ray_address local`)."""
    differences = f"""\
Ray over torchrun, pair by pair, with the smallest and the largest:

- start: {spread(later, 1)} s later
- episodes: {spread(longer, 1)} % longer
- whole run: {spread(whole, 1)} s longer"""
    print(differences)
    page.write(text, table, differences)


def _with_earlier(runs: dict[str, list[Run]], file: Path | None) -> dict[str, list[Run]]:
    if file is None:
        return runs
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    together = {name: [*(Run(**each) for each in known.get(name, [])), *new] for name, new in runs.items()}
    plain = {name: [asdict(each) for each in all_of_it] for name, all_of_it in together.items()}
    file.write_text(json.dumps(plain), encoding="utf-8")
    return together


if __name__ == "__main__":
    run(main, Options)
