"""Measure gain and cost of one policy server for several ranks, all on one CPU.

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
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run, spread
from benchmarks.harness.runs import evaluate, job_results, one_job


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    model_path: Path = ROOT / "models" / "panda_pick_by_colour"  # Directory of the checkpoint.
    environment: str = "pick_by_colour"  # Environment of the job.
    ranks: tuple[int, ...] = (1, 2, 3)  # Numbers of ranks.
    num_envs: int = 4  # Env slots of each rank.
    episodes: int = 24  # Episodes of the job, shared by the ranks.
    max_wait_ms: float = 5.0  # Longest wait of a query for others [ms].
    pairs: int = 3  # Runs of each kind, in turn.


@dataclass(frozen=True, kw_only=True)
class Run:
    """Speed and cost of one run of the program."""

    episodes_per_s: float  # Episodes per second of the job, without building environment and policy.
    cpu_s: float  # CPU time of all processes [s].
    timing: dict[str, Any]  # Results of the job.


def measure(options: Options, directory: Path) -> dict[tuple[int, bool], list[Run]]:
    """Return runs by (number of ranks, shared server)."""
    numbers = count()

    def once(ranks: int, *, shared: bool) -> Run:
        arguments = {"environment": options.environment, "num_envs": options.num_envs}
        arguments |= {"enable_cameras": True, "camera_size": 64}
        policy = {"policy_config_yaml_path": str(PANDA_YAML), "model_path": str(options.model_path)}
        document = one_job(arguments, "gr00t_closedloop", options.episodes, policy)
        if shared:
            document["jobs"][0]["policy_server"] = {"shared": "node", "max_wait_ms": options.max_wait_ms}
        name = directory / f"run_{next(numbers)}"
        process = evaluate(name, document, "--device", "cpu", "--split_jobs", "--no_dataset", ranks=ranks)
        (found,) = job_results(name)
        # Steps and their speed leave out building.
        running_s = found["env_steps"] / found["env_steps_per_s"]
        return Run(episodes_per_s=found["episodes"] / running_s, cpu_s=process.cpu_s, timing=found)

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
        timing = found[-1].timing
        kinds = {"batch_fill": 2, "offered_per_s": 1, "queue_ms": 1, "busy_share": 2}
        own = [f"{timing[f'server_{kind}']:.{digits}f}" if shared else "" for kind, digits in kinds.items()]
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
