import json

import pytest

from benchmarks.lerobot.pusht_side_by_side import (
    Episodes,
    furthest_apart,
    our_episodes,
    outcomes_apart,
    their_episodes,
)


def test_episodes_of_both_programs_are_compared_one_by_one(tmp_path):
    metrics = {"sum_rewards": [0.0, 4.5, 18.0], "successes": [False, True, True], "max_rewards": []}
    theirs = {"per_task": [{"task_group": "pusht", "metrics": metrics}]}
    (tmp_path / "eval_info.json").write_text(json.dumps(theirs))
    # A run lists its episodes in the order in which they ended.
    lines = ("pusht,2,18.0,True", "pusht,0,0.0,False", "pusht,1,4.25,False")
    (tmp_path / "episodes.csv").write_text("\n".join(["job,episode_index,return,success", *lines, ""]))
    ours = our_episodes(tmp_path)
    assert ours == Episodes(returns=[0.0, 4.25, 18.0], successes=[False, False, True])
    assert furthest_apart(ours.returns, their_episodes(tmp_path).returns) == 0.25
    assert outcomes_apart(ours, their_episodes(tmp_path)) == 1


def test_a_missing_episode_is_no_agreement():
    with pytest.raises(ValueError, match="is longer than"):
        furthest_apart([1.0], [1.0, 2.0])
