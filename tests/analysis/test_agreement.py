"""Two packages that others wrote, orbit-eval and verdikt-eval, say the same of the same result files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.analysis.comparison import JobComparison, Question, Verdict, compare_directories
from tests.analysis.recorded_runs import write_all_tables, write_run

NUM_PAIRS = 200
ALPHA = 0.05


def drawn(generator: np.random.Generator) -> tuple[str, str]:
    """Return the outcomes of a candidate and a baseline whose conditions decide some of the episodes."""
    episodes, agreement = int(generator.integers(10, 150)), generator.random()
    rates = generator.random() + generator.choice([-0.25, -0.1, 0.0, 0.1, 0.25]) * np.array([0.5, -0.5])
    decided, alike = generator.random(episodes) < agreement, generator.random(episodes)
    alone = generator.random((2, episodes))
    success = np.where(decided, alike, alone) < rates[:, None]
    first, second = ("".join(np.where(each, "s", "f")) for each in success)
    return first, second


def ours(directory: Path, candidate: str, baseline: str) -> JobComparison:
    for name, outcomes in (("new", candidate), ("old", baseline)):
        write_all_tables(write_run(directory / name, {"lift": outcomes}))
    return compare_directories([directory / "old", directory / "new"], Question(alpha=ALPHA)).tasks[0]


def finding(p_value: float, difference: float) -> Verdict:
    if p_value > ALPHA:
        return Verdict.UNDECIDED
    return Verdict.BETTER if difference > 0 else Verdict.WORSE


def orbits(directory: Path, outcomes: dict[str, str]) -> dict[str, Any]:
    """Difference of candidate minus baseline by orbit-eval, from two LeRobot files."""
    io = pytest.importorskip("orbit_eval.io")
    stats = pytest.importorskip("orbit_eval.stats")
    for name, letters in outcomes.items():
        task = {"task_group": "lift", "task_id": 0, "metrics": {"successes": [letter == "s" for letter in letters]}}
        (directory / f"{name}_eval_info.json").write_text(json.dumps({"seed": 0, "per_task": [task]}))
    runs = [io.load_single(str(directory / f"{name}_eval_info.json")) for name in ("new", "old")]
    return stats.compare_runs(*runs, n_boot=100)


def verdikts(directory: Path) -> Any:
    """Verdict of verdikt-eval on our own tables, through its CSV adapter."""
    compare = pytest.importorskip("verdikt.compare")
    csv = pytest.importorskip("verdikt.ingest.generic_csv")
    columns = {"episode_idx": "episode_index", "seed": "episode_seed"}
    rollouts = [
        rollout
        for name in ("new", "old")
        for rollout in csv._GenericCsvAdapter().parse(directory / name / "episodes.csv", name, columns)
    ]
    return compare.compare(rollouts, baseline="old", paired=True, alpha=ALPHA)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_others_come_to_the_same_verdict_or_use_the_exact_test(tmp_path):
    pytest.importorskip("orbit_eval", reason="orbit-eval is not installed: pip install --no-deps orbit-eval==0.17")
    pytest.importorskip("verdikt", reason="verdikt-eval is not installed: pip install --no-deps verdikt-eval==0.3.1")
    generator, agreement = np.random.default_rng(0), Counter()
    for number in range(NUM_PAIRS):
        directory = tmp_path / str(number)
        candidate, baseline = drawn(generator)
        found = ours(directory, candidate, baseline)
        orbit, verdikt = orbits(directory, {"new": candidate, "old": baseline}), verdikts(directory)
        (pair,) = verdikt.pairs
        # They count the same pairs and have the same exact p-value.
        counts = (found.counts.both, found.counts.only_first, found.counts.only_second, found.counts.neither)
        assert (orbit["n11"], orbit["n10"], orbit["n01"], orbit["n00"]) == counts
        assert orbit["p_mcnemar"] == pytest.approx(found.exact_p, abs=1e-9)
        assert pair.p_value == pytest.approx(found.exact_p, abs=1e-9)
        assert orbit["diff_pp"] == pytest.approx(100 * found.difference)
        exact = finding(found.exact_p, found.difference)
        assert (verdikt.verdict.name == "REGRESSION") == (exact is Verdict.WORSE)
        # Ours is the mid-p value, which finds no less, and never the opposite.
        assert exact in {found.verdict, Verdict.UNDECIDED}
        assert (found.verdict is exact) or found.mid_p <= ALPHA < found.exact_p
        agreement[found.verdict is exact] += 1
        agreement[found.verdict] += 1
    # docs/how_to/compare.md says how many.
    assert (agreement[True], agreement[False]) == (187, 13), agreement
    assert min(agreement[Verdict.BETTER], agreement[Verdict.WORSE], agreement[Verdict.UNDECIDED]) >= 20
