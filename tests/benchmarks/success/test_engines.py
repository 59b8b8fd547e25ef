"""The table of engines counts what changes from one version of MuJoCo to another, episode by episode."""

from typing import Any

import numpy as np

from benchmarks.success.engines import Engine, flips_table, paired, pairs_table, rates_table, write_outcomes
from isaaclab_arena.analysis.arms import Arm, EpisodeColumns


def engine(version: str, success: list[float], lengths: list[int]) -> Engine:
    number = len(success)
    nothing: Any = None
    episodes = EpisodeColumns(
        index=np.arange(number),
        drawn=np.array([str(index) for index in range(number)], object),
        began=np.array([str(index) for index in range(number)], object),
        success=np.array(success),
        length=np.array(lengths),
        episode_return=np.zeros(number),
        conditions=np.array([f'{{"gym.seed": {index}}}' for index in range(number)], object),
        metrics=np.array(["{}"] * number, object),
        events=np.full(number, None),
    )
    arm = Arm(directory=nothing, entry=nothing, contents=nothing, provenance=nothing, episodes=episodes, planned=number)
    return Engine(version=version, packages="numpy 2", arms={"lift": arm})


FOUND = {
    "robosuite": [
        engine("3.3.2", [1, 1, 1, 0, 1], [10, 10, 10, 20, 10]),
        engine("3.9.0", [1, 0, 0, 1, 1], [10, 20, 20, 15, 11]),
    ]
}


def test_pairs_say_which_version_alone_solved_them_and_whose_length_is_another():
    counts, changed = paired(FOUND["robosuite"][0], FOUND["robosuite"][1])
    assert (counts.both, counts.only_first, counts.only_second, counts.neither) == (2, 2, 1, 0)
    assert changed == 0.8
    last = str(pairs_table(FOUND)).splitlines()[-1]
    assert last.startswith("| robosuite | 3.3.2, 3.9.0 | -20.0 points [")
    assert last.endswith("| 5 | 3 | 2 | 1 | 80 % |")


def test_rates_and_tasks_that_flip_are_in_the_order_of_the_versions():
    assert "| robosuite | 3.9.0 | 3/5 | 60.0 % [23.1, 88.2] | 12.0 | numpy 2 |" in str(rates_table(FOUND))
    assert str(flips_table(FOUND)).splitlines()[-1] == "| robosuite | lift | 4, 3 | 3 |"


def test_every_outcome_and_length_is_written(tmp_path):
    write_outcomes(tmp_path / "engines.csv", FOUND)
    assert (tmp_path / "engines.csv").read_text().splitlines()[1:] == [
        "robosuite,lift,3.3.2,5,4,11101,10 10 10 20 10",
        "robosuite,lift,3.9.0,5,3,10011,10 20 20 15 11",
    ]
