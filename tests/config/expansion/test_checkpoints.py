"""Tests of `checkpoints` in job files."""

from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from tests.checkpoints.written import rsl_rl, trainer, write

MUST_BE = "checkpoints: must be all, best, last, a list of steps or a glob such as model_*00.pt"
ARCHIVE = rsl_rl(0)["model_100.pt"]


@pytest.fixture
def trained(tmp_path) -> Path:
    """The directory of a training that saved three checkpoints and its best."""
    write(tmp_path, {f"model_{name}.pt": ARCHIVE for name in ("0", "50", "100", "best")})
    return tmp_path


def read(directory: Path, asked: Any, *, option: str = "checkpoint_path", **more: Any) -> tuple[JobConfig, ...]:
    job = {"name": "go1", "policy_type": "rsl_rl", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
    job |= {"policy_config_dict": {option: str(directory)}, "checkpoints": asked, **more}
    return read_jobs({"jobs": [job]}, source="jobs.yaml").jobs


def refusal(directory: Path, asked: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        read(directory, asked, **more)
    (problem,) = refused.value.problems
    return str(problem).replace(str(directory), "DIR")


@pytest.mark.parametrize(
    ("asked", "jobs"),
    [
        ("all", {"go1-0": 0, "go1-50": 50, "go1-100": 100}),
        ("last", {"go1-100": 100}),
        ("best", {"go1-best": None}),
        ([100, 0, 100], {"go1-100": 100, "go1-0": 0}),
        (50, {"go1-50": 50}),
        ({"pattern": "model_*0.pt", "steps": [50]}, {"go1-50": 50}),
        ("model_*0.pt", {"go1-0": 0, "go1-50": 50, "go1-100": 100}),
    ],
    ids=str,
)
def test_one_job_becomes_one_per_checkpoint_with_its_step_beside_it(trained, asked, jobs):
    found = read(trained, asked)
    assert {job.name: job.swept["checkpoint_step"] for job in found} == jobs
    files = [Path(job.policy_config_dict["checkpoint_path"]) for job in found]
    assert [file.name for file in files] == [f"model_{name.removeprefix('go1-')}.pt" for name in jobs]
    assert all(file.parent == trained for file in files)


def test_the_best_has_the_step_that_its_training_says(trained, tmp_path, caplog):
    read(trained, "best")
    assert f"the step of '{trained / 'model_best.pt'}' is unknown" in caplog.text
    (trained / "model_best.json").write_text('{"iterations": 50}')
    (job,) = read(trained, "best")
    assert (job.name, job.swept["checkpoint_step"]) == ("go1-best", 50)


def test_the_best_may_be_one_of_the_others(tmp_path):
    write(
        tmp_path,
        {**trainer(0), "checkpoint-100/trainer_state.json": b'{"best_model_checkpoint": "out/checkpoint-100"}'},
    )
    (job,) = read(tmp_path, "best", option="model_path")
    assert job.policy_config_dict == {"model_path": str(tmp_path / "checkpoint-100")}
    assert (job.name, job.swept["checkpoint_step"]) == ("go1-best", 100)


def test_the_option_may_be_that_of_another_policy(tmp_path):
    write(tmp_path, trainer(0))
    (job,) = read(tmp_path, "all", option="model_path")
    assert job.policy_config_dict == {"model_path": str(tmp_path / "checkpoint-100")}


def test_every_combination_of_a_sweep_has_the_checkpoints(trained):
    found = read(trained, [0, 50], sweep={"seed": [1, 2]})
    assert [(job.name, job.seed, dict(job.swept)) for job in found] == [
        ("go1-seed1-0", 1, {"seed": 1, "checkpoint_step": 0}),
        ("go1-seed1-50", 1, {"seed": 1, "checkpoint_step": 50}),
        ("go1-seed2-0", 2, {"seed": 2, "checkpoint_step": 0}),
        ("go1-seed2-50", 2, {"seed": 2, "checkpoint_step": 50}),
    ]


def test_a_job_without_the_key_is_one_job(trained):
    (job,) = read(trained, None)
    assert (job.name, dict(job.swept)) == ("go1", {})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([50, 75], "checkpoints: there is no checkpoint of step 75 in 'DIR'; its steps are 0, 50, 100"),
        ("model_9*.pt", "checkpoints: there is none like \"model_9*.pt\" in 'DIR'; its steps are 0, 50, 100"),
        ("newest", f'{MUST_BE}, got "newest"'),
        ([], f"{MUST_BE}, got []"),
        ([True], f"{MUST_BE}, got [true]"),
    ],
    ids=str,
)
def test_checkpoints_that_are_not_there_are_refused(trained, asked, message):
    assert refusal(trained, asked) == f"jobs.yaml: job 'go1': {message}"


def test_a_checkpoint_that_is_still_being_written_is_refused(trained):
    (trained / "model_100.pt").write_bytes(ARCHIVE[:-9])
    assert "DIR/model_100.pt' cannot be loaded: is not complete: its list of contents is missing" in refusal(
        trained, "last"
    )


def test_a_directory_without_checkpoints_is_refused(tmp_path):
    assert "there is none like \"all\" in 'DIR'; its steps are none" in refusal(tmp_path, "all")
    assert "checkpoints: the training in 'DIR' names no best checkpoint" in refusal(tmp_path, "best")


def test_what_names_no_directory_is_refused(trained):
    assert "policy_config_dict.checkpoint_path: 'DIR/model_50.pt' is no directory" in refusal(
        trained, "all", policy_config_dict={"checkpoint_path": str(trained / "model_50.pt")}
    )
    assert "checkpoints: needs the directory of the training as an option of the policy: checkpoint_path" in refusal(
        trained, "all", policy_config_dict={}
    )
