import importlib.util
import json

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.tracking.trackers import check_trackers
from isaaclab_arena.tracking.watched_run import job_keys

MISSING = [name for name in TrackerName if importlib.util.find_spec(name) is None]


@pytest.fixture
def missing() -> str:
    if not MISSING:
        pytest.skip("the libraries of all trackers are installed here")
    return MISSING[0]


def test_a_tracker_whose_library_is_missing_is_refused_with_its_extra(missing):
    with pytest.raises(ConfigError, match=f"tracking: needs the package {missing}; install it with: pip install"):
        check_trackers([missing], key="tracking")


def test_a_job_file_that_names_it_is_not_valid_here(missing, tmp_path, capsys):
    job = {"name": "lift", "policy_type": "scripted", "arena_env_args": {"environment": "lift_object"}}
    document = {"tracking": [missing], "jobs": [{**job, "num_episodes": 1}]}
    (tmp_path / "jobs.json").write_text(json.dumps(document))
    assert main(["validate", str(tmp_path / "jobs.json")]) == 2
    assert f"jobs.json: tracking: needs the package {missing}" in capsys.readouterr().err


def test_those_that_are_installed_are_accepted():
    check_trackers([name for name in TrackerName if name not in MISSING], key="tracking")


def test_in_wandb_a_job_shares_no_key_with_the_table_or_the_checkpoints():
    names = ["lift", "jobs", "jobs_", "checkpoints", "checkpoint_step"]
    keys = job_keys(names)
    assert [keys[name] for name in names] == ["lift", "jobs__", "jobs_", "checkpoints_", "checkpoint_step_"]
