from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.watch import OTHER_SEED, WatchSettings, jobs_of_checkpoint
from tests.checkpoints.written import lerobot, write
from tests.evaluation.watching.trainings import save

REACH = {"name": "reach", "policy_type": "rsl_rl", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}


@pytest.fixture
def training(tmp_path):
    save(tmp_path / "go1", 0, 50)
    return tmp_path / "go1"


def jobs_of(training, *jobs, step=50, name="model_50.pt", seed_offset=0, directory=Path(), pattern=None):
    settings = WatchSettings(training=training, eval_jobs_config=directory / "jobs.json", pattern=pattern)
    checkpoint = Checkpoint(step=step, path=training / name)
    made = jobs_of_checkpoint(settings, {"jobs": list(jobs)}, checkpoint, seed_offset)
    return read_jobs(made, source="jobs.json").jobs


def test_every_job_is_asked_of_that_checkpoint(training):
    (job,) = jobs_of(training, REACH)
    assert job.name == "reach-50"
    assert job.policy_config_dict == {"checkpoint_path": str(training / "model_50.pt")}
    assert job.swept == {"checkpoint_step": 50}


def test_a_job_without_checkpoints_is_left_as_it_is(training):
    scripted = {**REACH, "name": "scripted", "policy_type": "scripted", "checkpoints": None}
    _, job = jobs_of(training, REACH, scripted)
    assert (job.name, dict(job.policy_config_dict)) == ("scripted", {})


def test_a_checkpoint_of_another_kind_goes_into_another_option(tmp_path):
    write(tmp_path, lerobot(0))
    (job,) = jobs_of(tmp_path, REACH, step=100, name="checkpoints/000100/pretrained_model")
    assert [*job.policy_config_dict] == ["pretrained"]


def test_a_job_that_names_the_option_keeps_it(training):
    (job,) = jobs_of(training, {**REACH, "policy_config_dict": {"model_path": "anything", "speed": 2}})
    assert job.policy_config_dict == {"model_path": str(training / "model_50.pt"), "speed": 2}


def test_a_pattern_finds_it_again(training):
    (training / "policy_7.onnx").write_bytes(b"graph")
    (job,) = jobs_of(training, REACH, step=7, name="policy_7.onnx", pattern="policy_*.onnx")
    assert job.policy_config_dict == {"checkpoint_path": str(training / "policy_7.onnx")}


def test_other_episodes_are_those_of_another_seed(training):
    first, second = jobs_of(training, REACH, {**REACH, "name": "seeded", "seed": 7}, seed_offset=OTHER_SEED)
    assert (first.seed, second.seed) == (OTHER_SEED, OTHER_SEED + 7)


def test_saved_conditions_are_found_from_the_directory_of_the_job_file(training):
    asked = {**REACH, "conditions": "saved.json#reach"}
    (job,) = jobs_of(training, asked, directory=training)
    assert job.conditions == f"{training / 'saved.json'}#reach"
    (job,) = jobs_of(training, {**asked, "conditions": "/saved/all.json"}, directory=training)
    assert job.conditions == "/saved/all.json"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "jobs: null is no list of jobs"),
        ({"jobs": ["reach"]}, "is no list of jobs"),
        ({"jobs": [], "defaults": 3}, "3 is not a mapping"),
    ],
)
def test_what_is_no_job_file_is_refused(training, document, message):
    settings = WatchSettings(training=training, eval_jobs_config=Path("jobs.json"))
    with pytest.raises(ConfigError, match=message):
        jobs_of_checkpoint(settings, document, Checkpoint(step=50, path=training / "model_50.pt"))
