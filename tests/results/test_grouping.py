import dataclasses
import io

import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.console import GROUPS_FILE, group_by, groups_table
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.statistics import wilson_interval
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


def placed(line, place):
    """Return an episode that starts from conditions that no other place has."""
    return dataclasses.replace(line, variations={"place": place, **line.variations})


HIGH = "variations.cube.mass.sampler_cfg.high"


@pytest.fixture
def merged(tmp_path):
    strengths = {"weak-1": 0.2, "weak-2": 0.2, "strong": 2.0}
    outcomes = {"weak-1": "ssf", "weak-2": "sse", "strong": "fts", "plain": "sss"}
    jobs = [
        planned(
            name,
            index=index,
            num_episodes=3,
            variations={"cube.mass.sampler_cfg.high": strengths[name]} if name in strengths else {},
        )
        for index, name in enumerate(outcomes)
    ]
    write_plan(tmp_path, *jobs)
    for name, letters in outcomes.items():
        (tmp_path / name).mkdir()
        write_lines(tmp_path, [placed(line, name) for line in commit_lines(letters, job=name)])
        write_report(tmp_path, report(name))
    return merge_results(tmp_path)


def test_jobs_with_the_same_strength_are_pooled_and_strengths_are_in_order(merged):
    groups = group_by(merged, [HIGH])
    assert groups[HIGH].tolist() == [None, 0.2, 2.0]
    assert groups["jobs"].tolist() == [1, 2, 1]
    assert groups["episodes"].tolist() == [3, 6, 3]
    assert groups["successes"].tolist() == [3, 4, 1]
    assert groups["scored"].tolist() == [3, 5, 3]
    assert groups["errors"].tolist() == [0, 1, 0]
    interval = wilson_interval(4, 5)
    assert interval is not None
    assert (groups["success_low"][1], groups["success_high"][1]) == (interval.low, interval.high)


def test_numbers_are_in_the_order_of_their_size_and_not_of_their_digits(tmp_path):
    jobs = [planned(str(seed), index=index, seed=seed) for index, seed in enumerate((10, 9, 100, 2))]
    write_plan(tmp_path, *jobs)
    assert group_by(merge_results(tmp_path), ["seed"])["seed"].tolist() == [2, 9, 10, 100]


def test_several_keys_make_a_row_per_combination(merged):
    groups = group_by(merged, ["name", "seed"])
    assert groups["name"].tolist() == ["plain", "strong", "weak-1", "weak-2"]
    assert groups["seed"].tolist() == [3, 3, 3, 3]


def test_a_key_that_no_job_has_is_refused_with_the_nearest_one(merged):
    with pytest.raises(ConfigError, match=f"did you mean '{HIGH}'"):
        group_by(merged, [HIGH.replace("mass", "mas")])


def test_groups_are_written_beside_the_other_tables(tmp_path, merged):
    assert main(["merge", str(tmp_path), "--by", HIGH]) == 0
    assert pd.read_csv(tmp_path / GROUPS_FILE)["successes"].tolist() == [3, 4, 1]


def test_success_that_is_not_measured_is_no_zero(tmp_path):
    write_plan(tmp_path, planned(num_episodes=3))
    write_lines(tmp_path, commit_lines("uuu"))
    write_report(tmp_path, report())
    groups = group_by(merge_results(tmp_path), ["seed"])
    assert groups["scored"].tolist() == [0]
    assert groups["successes"].isna().tolist() == [True]
    assert groups["success_rate"].isna().tolist() == [True]
    stream = io.StringIO()
    Console(file=stream, width=120).print(groups_table(groups, ["seed"]))
    assert "0.0" not in stream.getvalue()
