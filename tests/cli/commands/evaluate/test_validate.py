"""``isaaclab-arena validate`` counts the episodes that would be run."""

import json

from isaaclab_arena.cli.main import main
from tests.environments.libero.checkouts import NUM_STATES, SUITES, in_checkout, make_checkout


def test_episodes_whose_number_is_the_environments_own_are_counted(tmp_path, capsys):
    options = {**in_checkout(make_checkout(tmp_path)), "protocol": "strict"}
    block = {"name": "spatial", "suite": "libero_spatial", "arena_env_args": options, "policy_type": "zero_action"}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [block]}))
    assert main(["validate", str(path)]) == 0, capsys.readouterr().err
    num_tasks = len(SUITES["libero_spatial"])
    assert f"{num_tasks} jobs, {num_tasks * NUM_STATES} episodes, " in capsys.readouterr().out
