"""Measure what it gives and costs that ranks share one policy server, where all of them are on one CPU.

Whole runs of the program with the shipped GR00T model, on several numbers of ranks, with a network in each rank and
with one server for all, in turn.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gr00t.checkpoint import PANDA_YAML
from benchmarks.harness.evaluations import evaluate, job_results
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table, spread
from benchmarks.harness.timing import in_turn, median, ratios


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    model_path: Path = ROOT / "models" / "panda_pick_by_colour"  # Directory of the checkpoint.
    environment: str = "pick_by_colour"  # What the job runs.
    ranks: tuple[int, ...] = (1, 2, 3)  # Numbers of ranks.
    num_envs: int = 4  # Env slots of each rank.
    episodes: int = 24  # Episodes of the job, which the ranks share.
    max_wait_ms: float = 5.0  # How long a query waits for others [ms].
    pairs: int = 3  # Runs of each kind, in turn.


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the program took."""

    episodes_per_s: float  # Episodes per second of the job, without building what it needs.
    cpu_s: float  # CPU time of all processes [s].
    timing: dict[str, Any]  # What the tables say of the job.


def measure(options: Options, directory: Path) -> dict[tuple[int, bool], list[Run]]:
    """Return runs, by the number of ranks and by whether they share a server."""
    numbers = count()

    def once(ranks: int, *, shared: bool) -> Run:
        job = {
            "name": "job",
            "arena_env_args": {
                "environment": options.environment,
                "num_envs": options.num_envs,
                "enable_cameras": True,
                "camera_size": 64,
            },
            "num_episodes": options.episodes,
            "policy_type": "gr00t_closedloop",
            "policy_config_dict": {"policy_config_yaml_path": str(PANDA_YAML), "model_path": str(options.model_path)},
            **({"policy_server": {"shared": "node", "max_wait_ms": options.max_wait_ms}} if shared else {}),
        }
        name = directory / f"run_{next(numbers)}"
        process = evaluate(name, {"jobs": [job]}, "--device", "cpu", "--split_jobs", "--no_dataset", ranks=ranks)
        (found,) = job_results(name)
        # Steps and their speed leave out what was built.
        running_s = found["env_steps"] / found["env_steps_per_s"]
        return Run(
            episodes_per_s=found["episodes"] / running_s,
            cpu_s=process.cpu_s,
            timing=found,
        )

    kinds = [(ranks, shared) for ranks in options.ranks for shared in (False, True)]
    return in_turn({kind: partial(once, kind[0], shared=kind[1]) for kind in kinds}, options.pairs)


def main(options: Options) -> None:
    """Measure, print the table and write the page."""
    page = Page("shared_server", "One policy server for several ranks, on a CPU", options)
    with tempfile.TemporaryDirectory(prefix="shared_server_") as name:
        runs = measure(options, Path(name))
    figures = ("episodes per s", "of a rank's own network", "batch fill", "entries per s", "queueing ms", "busy share")
    table = Table("ranks", "network", *figures, "CPU s")
    for (ranks, shared), found in runs.items():
        told = found[-1].timing
        own = ("", "", "", "")
        if shared:
            own = (
                f"{told['server_batch_fill']:.2f}",
                f"{told['server_offered_per_s']:.1f}",
                f"{told['server_queue_ms']:.1f}",
                f"{told['server_busy_share']:.2f}",
            )
        table.add(
            ranks,
            "shared server" if shared else "in each rank",
            f"{median(found, 'episodes_per_s'):.2f}",
            spread(ratios(found, runs[ranks, False], "episodes_per_s")) if shared else "",
            *own,
            f"{median(found, 'cpu_s'):.0f}",
        )
    text = f"""\
`{options.environment}`, {options.episodes} episodes on `cpu`, {options.num_envs} env slots for each rank, cameras of
64 x 64, one thread of torch in each process. Ranks and server share the cores, so this page says what a server costs
where it gives nothing: it is for one GPU and simulators on many CPU cores. Calls of the network have 4 batch entries
on a CPU. Figures are medians of {options.pairs} runs, ratios are of pairs with the smallest and the largest, and those
of the server are of the last run. Success is the same in all of them."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
