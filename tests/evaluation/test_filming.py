"""The episodes that are filmed."""

from pathlib import Path

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.evaluation.rerun import Choice, discordant_episodes, episodes_by_outcome
from tests.analysis.recorded_runs import failed_by, write_run
from tests.end_to_end.launching import write_jobs


def job(name: str, policy: str, **env_args) -> dict:
    args = {"environment": "reach", "num_envs": 3, **env_args}
    return {"name": name, "arena_env_args": args, "policy_type": policy, "num_episodes": 3}


def run_jobs(directory: Path, *jobs: dict) -> Path:
    path = write_jobs(directory.with_suffix(".json"), list(jobs))
    assert evaluate(["--eval_jobs_config", str(path), "--output_dir", str(directory), "--no_dataset"]) == 0
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    return run_jobs(directory, job("good", "scripted"), job("idle", "zero_action"))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "other"
    return run_jobs(directory, job("good", "zero_action"), job("new", "scripted"))


def test_episodes_are_chosen_by_how_they_ended(run):
    assert episodes_by_outcome(run, ["good", "idle"], Choice.SUCCESSES) == {"good": [0, 1, 2], "idle": []}
    assert episodes_by_outcome(run, ["good", "idle"], Choice.FAILURES) == {"good": [], "idle": [0, 1, 2]}
    assert episodes_by_outcome(run, ["good"], Choice.ALL) == {"good": [0, 1, 2]}


@pytest.mark.parametrize(
    ("outcomes", "one"), [("ssft", [2]), ("ess", [1]), ("esf", [2]), ("ee", [0]), ("uu", [0]), ("--", [])]
)
def test_one_episode_of_a_job_is_its_first_failure_or_else_its_first(tmp_path, outcomes, one):
    write_run(tmp_path / "run", {"lift": outcomes})
    assert episodes_by_outcome(tmp_path / "run", ["lift"], Choice.ONE) == {"lift": one}


TOLD = {1: "dropped", 2: "dropped", 3: "stuck", 4: "dropped", 5: "dropped", 6: None, 7: "stuck", 8: "dropped"}


@pytest.mark.parametrize(
    ("outcomes", "reasons", "filmed"), [("sffftfffe", TOLD, [1, 2, 3, 4, 6, 7]), ("sfufff", {}, [3, 4, 5])]
)
def test_of_each_reason_the_three_most_typical_failures_are_filmed_and_neither_errors_nor_successes(
    tmp_path, outcomes, reasons, filmed
):
    events = {index: failed_by(event) for index, event in reasons.items()}
    write_run(tmp_path / "run", {"lift": outcomes}, events=events)
    assert episodes_by_outcome(tmp_path / "run", ["lift"], Choice.REASONS) == {"lift": filmed}


def test_discordant_episodes_of_a_job_and_another_of_the_run_belong_to_both(run):
    assert discordant_episodes(run, ["good", "idle"], "idle") == {"good": [0, 1, 2], "idle": [0, 1, 2]}


def test_discordant_episodes_against_another_run_are_those_of_jobs_of_the_same_name(run, other):
    assert discordant_episodes(run, ["good", "idle"], str(other)) == {"good": [0, 1, 2]}


def test_jobs_of_other_tasks_are_no_pairs_and_are_left_out_where_others_are(run, tmp_path):
    mixed = run_jobs(
        tmp_path / "mixed",
        job("good", "zero_action", embodiment="so101"),
        job("pair", "scripted"),
        job("idle", "zero_action"),
    )
    with pytest.raises(ConfigError, match="'panda' and 'so101'"):
        discordant_episodes(run, ["good"], str(mixed))
    assert discordant_episodes(mixed, ["pair", "good"], "idle") == {"pair": [0, 1, 2], "idle": [0, 1, 2]}


def test_a_run_without_a_job_to_compare_with_is_refused(run, other):
    with pytest.raises(ConfigError, match="no job can be compared"):
        discordant_episodes(run, ["idle"], str(other))
