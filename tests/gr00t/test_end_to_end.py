"""A GR00T model drives the Panda, from pictures and joints, through the program as a user starts it."""

from pathlib import Path

import pytest

from isaaclab_arena.evaluation import policy_runner
from isaaclab_arena_gr00t.config import model_interface, stated_embodiments
from tests.end_to_end.launching import episodes_table, jobs_table
from tests.gr00t.panda_checkpoint import POLICY, save_panda_checkpoint, write_panda_yaml


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A directory with a checkpoint of random weights."""
    directory = tmp_path_factory.mktemp("gr00t")
    save_panda_checkpoint(directory / "checkpoint")
    return directory


def evaluate(directory: Path, output: Path, num_envs: int = 2, num_episodes: int = 2) -> int:
    yaml = write_panda_yaml(directory / "panda.yaml")
    return policy_runner.main(
        [
            *(
                "--policy_type",
                POLICY,
                "--num_episodes",
                str(num_episodes),
                "--num_envs",
                str(num_envs),
                "--device",
                "cpu",
            ),
            *("--output_dir", str(output), "--enable_cameras"),
            *("reach", "--camera_size", "64", "--policy_config_yaml_path", yaml),
        ]
    )


@pytest.fixture(scope="module")
def evaluated(directory) -> Path:
    assert evaluate(directory, directory / "two") == 0
    return directory / "two"


def test_a_model_plays_its_episodes_to_the_end(evaluated):
    [job] = jobs_table(evaluated).to_dict("records")
    assert (job["status"], job["episodes"], job["planned"]) == ("completed", 2, 2)
    assert job["reproducible"] == "bitwise"
    assert min(episodes_table(evaluated)["length"]) > 10


def test_the_log_says_where_the_model_ran_and_what_asking_slot_by_slot_has_saved(evaluated):
    log = (evaluated / "logs" / "rank0.log").read_text()
    assert "checkpoint runs on cpu" in log
    # Both episodes last 120 steps in chunks of 5, and queries on a CPU have 4 env slots.
    assert "gr00t_closedloop: 24 queries for 48 env slots, 96 with those that fill up; all env slots each time" in log


def test_an_episode_is_the_same_bits_alone(directory, evaluated):
    assert evaluate(directory, directory / "one", num_envs=1, num_episodes=1) == 0
    checksums = [list(episodes_table(output)["checksum"]) for output in (directory / "one", evaluated)]
    assert checksums[0] == checksums[1][:1]
    assert len(set(checksums[1])) == 2


def test_what_a_checkpoints_files_say_of_it_is_what_the_model_package_says(directory):
    from gr00t.policy.gr00t_policy import Gr00tPolicy  # noqa: PLC0415  transformers takes seconds to load

    policy = Gr00tPolicy("new_embodiment", directory / "checkpoint", device="cpu")
    stated = stated_embodiments(str(directory / "checkpoint"))["new_embodiment"]
    said = model_interface(policy.get_modality_config(), policy.get_dimensions())
    assert model_interface(stated.modalities, stated.dimensions) == said
