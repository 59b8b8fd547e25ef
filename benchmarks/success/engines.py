"""Measure the success of the same scripted experts in the same episodes on several versions of MuJoCo.

Each interpreter has the same packages and another MuJoCo, for example::

    python3 -m venv build/engines/metaworld-3.8.1
    build/engines/metaworld-3.8.1/bin/pip install metaworld==3.1.1 packaging
    build/engines/metaworld-3.8.1/bin/pip install mujoco==3.8.1
"""

import csv
import itertools
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.harness.environments import success_rate
from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.runs import evaluate
from isaaclab_arena.analysis.arms import Arm, match, read_run
from isaaclab_arena.policy.scripted import RobosuiteExpertPolicy
from isaaclab_arena.results.statistics import mcnemar_mid_p, paired_difference_interval
from isaaclab_arena.results.stopping import PairCounts

_TASKS_OF_META_WORLD = "import metaworld.env_dict as tasks; print(*sorted(tasks.ALL_V3_ENVIRONMENTS))"
_PACKAGES = ("mujoco", "metaworld", "robosuite", "gymnasium", "numpy")
_VERSIONS = f"""
import importlib.metadata, json
found = {{each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}}
print(json.dumps({{name: found[name] for name in {_PACKAGES} if name in found}}))
"""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    metaworld: tuple[str, ...] = ()  # Interpreters with Meta-World.
    metaworld_episodes: int = 10  # Episodes per task.
    robosuite: tuple[str, ...] = ()  # Interpreters with robosuite 1.5.2.
    robosuite_episodes: int = 50  # Episodes per task.
    libero: tuple[str, ...] = ()  # Interpreters with LIBERO's packages.
    libero_path: str = ""  # Checkout of LIBERO.
    libero_episodes: int = 50  # Episodes per task.
    num_envs: int = 2  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.
    runs: Path = Path("build/engines/runs")  # Directory of the runs; complete ones are not run again.


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tasks with their expert."""

    name: str  # Name.
    interpreters: tuple[str, ...]  # Interpreters with the suite, each with another MuJoCo.
    policy: str  # Registered name of the expert.
    episodes: int  # Episodes per task.
    environments: Mapping[str, str]  # Environment of each task, by the task's name.
    options: Mapping[str, Any]  # Options of every environment.


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Outcomes of a suite on one version of MuJoCo."""

    version: str  # The version of MuJoCo.
    packages: str  # Versions of the other packages.
    arms: Mapping[str, Arm]  # Episodes of each task.

    @property
    def lengths(self) -> np.ndarray:
        """Control steps of each solved episode, of all tasks."""
        return np.concatenate([arm.episodes.length[arm.episodes.success > 0] for arm in self.arms.values()])

    def solved(self, task: str) -> int:
        """Return the number of solved episodes of a task."""
        return int(np.nansum(self.arms[task].episodes.success))


def suites(options: Options) -> Iterator[Suite]:
    """Yield the suites with interpreters."""
    if options.metaworld:
        tasks = answer(options.metaworld[0], _TASKS_OF_META_WORLD).split()
        yield Suite(
            name="Meta-World",
            interpreters=options.metaworld,
            policy="metaworld_expert",
            episodes=options.metaworld_episodes,
            environments={task: f"metaworld:{task}" for task in tasks},
            options={},
        )
    if options.robosuite:
        yield Suite(
            name="robosuite",
            interpreters=options.robosuite,
            policy="robosuite_expert",
            episodes=options.robosuite_episodes,
            environments={task: f"robosuite:{task}" for task in RobosuiteExpertPolicy.plans},
            options={},
        )
    if options.libero:
        yield Suite(
            name="LIBERO",
            interpreters=options.libero,
            policy="libero_expert",
            episodes=options.libero_episodes,
            environments={"libero_spatial_0": "libero:libero_spatial/0"},
            options={"libero_path": options.libero_path, "protocol": "strict"},
        )


def answer(python: str, program: str) -> str:
    """Return the output of a short program in an interpreter."""
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def evaluated(suite: Suite, python: str, options: Options) -> Engine:
    """Run a suite in an interpreter unless that is done, and return its outcomes, none of them an error."""
    packages = json.loads(answer(python, _VERSIONS))
    version = packages.pop("mujoco")
    directory = ROOT / options.runs / f"{suite.name.lower()}-{version}"
    # A machine that others use may keep a worker waiting.
    patience = {"start_timeout_s": 1800.0, "step_timeout_s": 1800.0}
    arguments = {**suite.options, **patience, "python": python, "num_envs": options.num_envs}
    document = {
        "defaults": {"policy_type": suite.policy, "num_episodes": suite.episodes, "seed": options.seed},
        "jobs": [
            {"name": task, "arena_env_args": {**arguments, "environment": environment}}
            for task, environment in suite.environments.items()
        ],
    }
    is_complete = (directory / "out" / "results.json").exists() and not any(
        arm.num_missing for arm in read_run(directory / "out").arms.values()
    )
    if not is_complete:
        evaluate(directory, document, "--no_dataset", *(["--resume"] if (directory / "out").exists() else []))
    stated = ", ".join(f"{name} {number}" for name, number in packages.items())
    arms = read_run(directory / "out").arms
    errors = sum(int(np.isnan(arm.episodes.success).sum()) for arm in arms.values())
    if errors:
        raise RuntimeError(f"{directory}: {errors} episodes ended in an error; remove the run and try again")
    return Engine(version=version, packages=stated, arms=arms)


def paired(first: Engine, second: Engine) -> tuple[PairCounts, float]:
    """Return the paired outcomes of all tasks, and the share of pairs with different lengths."""
    matched = [match(first.arms[task], second.arms[task]) for task in first.arms]
    counts = [each.counts for each in matched]
    fields = ("both", "only_first", "only_second", "neither")
    changed = np.concatenate([each.first.length != each.second.length for each in matched])
    return PairCounts(**{name: sum(getattr(each, name) for each in counts) for name in fields}), float(changed.mean())


def rates_table(found: Mapping[str, Sequence[Engine]]) -> Table:
    """Return the success rates of each version in each suite."""
    table = Table("suite", "MuJoCo", "solved", "rate, Wilson 95 %", "steps to success", "other packages", words=6)
    for suite, engines in found.items():
        for engine in engines:
            solved = sum(map(engine.solved, engine.arms))
            number = sum(len(arm.episodes) for arm in engine.arms.values())
            rate, steps = success_rate(solved, number), f"{engine.lengths.mean():.1f}"
            table.add(suite, engine.version, f"{solved}/{number}", rate, steps, engine.packages)
    return table


def pairs_table(found: Mapping[str, Sequence[Engine]]) -> Table:
    """Return the changes from one version to another, episode by episode."""
    words = ("suite", "MuJoCo", "second less first, 95 %", "mid-p")
    table = Table(*words, "pairs", "flips", "only first", "only second", "other length", words=len(words))
    for suite, engines in found.items():
        for first, second in itertools.combinations(engines, 2):
            counts, changed = paired(second, first)
            interval = paired_difference_interval(counts)
            assert interval is not None
            assert counts.difference is not None
            low, middle, high = (100 * each for each in (interval.low, counts.difference, interval.high))
            table.add(
                suite,
                f"{first.version}, {second.version}",
                f"{middle:+.1f} points [{low:+.1f}, {high:+.1f}]",
                f"{mcnemar_mid_p(counts.only_first, counts.only_second):.3f}",
                counts.total,
                counts.only_first + counts.only_second,
                counts.only_second,
                counts.only_first,
                f"{100 * changed:.0f} %",
            )
    return table


def flips_table(found: Mapping[str, Sequence[Engine]]) -> Table:
    """Return the tasks with an episode that succeeds on one version and fails on another."""
    table = Table("suite", "task", "solved, by version", "episodes that flip", words=3)
    for suite, engines in found.items():
        for task in engines[0].arms:
            outcomes = np.stack([engine.arms[task].episodes.success for engine in engines])
            flips = int((outcomes.min(axis=0) != outcomes.max(axis=0)).sum())
            if flips:
                table.add(suite, task, ", ".join(str(engine.solved(task)) for engine in engines), flips)
    return table


def write_outcomes(path: Path, found: Mapping[str, Sequence[Engine]]) -> None:
    """Write a line for each task and version: outcome (1 solved, 0 not) and length of each episode."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["suite", "task", "mujoco", "episodes", "solved", "outcomes", "lengths"])
        for suite, engines in found.items():
            for task, engine in itertools.product(engines[0].arms, engines):
                episodes = engine.arms[task].episodes
                outcomes = "".join(str(int(each)) for each in np.nan_to_num(episodes.success))
                lengths = " ".join(str(int(each)) for each in episodes.length)
                writer.writerow([suite, task, engine.version, len(episodes), engine.solved(task), outcomes, lengths])


def main(options: Options) -> None:
    """Run every suite in each of its interpreters, and write the page and the outcomes."""
    page = Page("engines", "The same experts and episodes on several versions of MuJoCo", options)
    found = {
        suite.name: [evaluated(suite, python, options) for python in suite.interpreters] for suite in suites(options)
    }
    text = f"""\
Seed {options.seed}, CPU. In each suite everything but the engine is the same: packages, experts, seeds of the episodes.
A pair is one episode on two versions; it flips if one of them solves it and the other does not.
"other length" is the share of pairs whose episodes end after another number of control steps, so that something else
happened in them."""
    outcomes = page.path.with_suffix(".csv")
    page.write(
        text,
        rates_table(found),
        "What changes with the engine:",
        pairs_table(found),
        "Tasks with episodes that flip, and how many episodes each version solves, in the order above:",
        flips_table(found),
        f"Every outcome and length: [{outcomes.name}]({outcomes.name}).",
    )
    write_outcomes(outcomes, found)


if __name__ == "__main__":
    run(main, Options)
