import json

import pytest

from benchmarks.lerobot.pusht_side_by_side import furthest_apart, our_returns, their_returns


def test_episodes_of_both_programs_are_compared_one_by_one(tmp_path):
    theirs = {"per_task": [{"task_group": "pusht", "metrics": {"sum_rewards": [0.0, 4.5, 18.0], "max_rewards": []}}]}
    (tmp_path / "eval_info.json").write_text(json.dumps(theirs))
    # A run lists its episodes in the order in which they ended.
    (tmp_path / "episodes.csv").write_text("job,episode_index,return\npusht,2,18.0\npusht,0,0.0\npusht,1,4.25\n")
    assert our_returns(tmp_path) == [0.0, 4.25, 18.0]
    assert furthest_apart(our_returns(tmp_path), their_returns(tmp_path)) == 0.25


def test_a_missing_episode_is_no_agreement():
    with pytest.raises(ValueError, match="is longer than"):
        furthest_apart([1.0], [1.0, 2.0])
