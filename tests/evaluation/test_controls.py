"""A policy beside itself without looking and listening."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.loading import JobsFile, hash_jobs, read_jobs
from isaaclab_arena.environments import SUITES
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import arms_of
from tests.evaluation.looking import GO, LAMP, POLICY, STAY, Lamps

ALL = ["blind", "no_instruction", "swapped_instruction", "shuffled_cameras", "open_loop", "mean_action"]


def job_of(**more: Any) -> dict[str, Any]:
    options = {"environment": LAMP, "enable_cameras": True, "num_envs": 3, "success_key": "solved"}
    options |= {"task_description": GO, **more.pop("arena_env_args", {})}
    job = {"name": "lamp", "policy_type": POLICY, "num_episodes": 12, "controls": ALL, **more}
    return {**job, "arena_env_args": {key: value for key, value in options.items() if value is not None}}


OTHER = job_of(name="other", controls=None, arena_env_args={"task_description": STAY})


def file_of(*jobs: dict[str, Any]) -> JobsFile:
    return read_jobs({"jobs": [*jobs]}, source="jobs.yaml", suites=SUITES, arms=arms_of)


def test_a_job_keeps_its_name_and_each_control_is_an_arm_behind_all_jobs():
    benign, other, *arms = file_of(job_of(), OTHER).jobs
    assert [arm.name for arm in arms] == [f"lamp-{name}" for name in ALL[:4]]
    assert {arm.labels["controls"] for arm in (benign, *arms)} == {"lamp"}
    assert benign.labels["control"] == "benign"
    assert benign.controls == ("open_loop", "mean_action")
    assert hash_jobs((benign, other)) == hash_jobs(file_of(job_of(controls=None), OTHER).jobs)
    blind, silent, swapped, shuffled = arms
    assert blind.variations["picture.brightness.sampler_cfg.high"] == 0
    assert silent.variations["instruction.words.sampler_cfg.high"] == 0
    assert (swapped.language_instruction, swapped.variations) == (STAY, {})
    assert shuffled.variations["picture.exchanged.sampler_cfg.low"] == 1


def test_a_job_without_words_of_the_task_loses_its_own_words():
    benign, arm = file_of(job_of(controls=["no_instruction"], language_instruction="come")).jobs
    assert (benign.language_instruction, arm.language_instruction) == ("come", None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"controls": ["blnd"]}, "there is no control 'blnd'; did you mean 'blind'?"),
    "no list": ({"controls": {"blind": True}}, "must be a list of blind"),
    "no cameras": ({"arena_env_args": {"enable_cameras": False}}, "'blind': it changes pictures only"),
    "never looks": ({"policy_type": "random_action"}, "'random_action' never looks at pictures"),
    "its own variation": ({"variations": {"picture.brightness.enabled": True}}, "varies picture.brightness itself"),
    "its own words": ({"variations": {"instruction.words.enabled": True}}, "varies instruction.words itself"),
    "no other words": ({"arena_env_args": {"task_description": STAY}}, "no other job of the file says other words"),
    "steps": ({"num_episodes": None, "num_steps": 9}, "'open_loop': the job counts steps"),
    "one episode": ({"num_episodes": 1}, "'open_loop': the job has one episode"),
    "saved starts": ({"conditions": "saved.json"}, "conditions"),
    "label": ({"labels": {"control": "x"}}, "labels.control: is a label that controls set"),
    "name": ({"name": "n" * 70}, "name: with a control behind it"),
    "both": ({"robustness": {"axes": ["delay"]}}, "excludes robustness"),
}


@pytest.mark.parametrize(("changes", "told"), REFUSED.values(), ids=REFUSED)
def test_a_control_that_a_job_cannot_have_is_refused_by_name(changes, told):
    with pytest.raises(ConfigError) as refused:
        _ = file_of(job_of(**changes), OTHER).jobs
    problems = [str(problem) for problem in refused.value.problems]
    assert any(told in problem for problem in problems), problems
    assert all(problem.startswith("jobs.yaml") and "job" in problem for problem in problems)


class OneCamera:
    """A builder that shows its cameras before the start."""

    def __init__(self) -> None:
        self.own = ENVIRONMENTS.get(LAMP.replace("Lamp-v0", "OneCamera-v0"))
        self.config_class, self.check, self.build = self.own.config_class, self.own.check, self.own.build

    def sample(self, config):
        return self.build(config, num_envs=1, device="cpu", num_threads=1)


def test_cameras_that_cannot_be_exchanged_are_refused_before_the_start():
    with ENVIRONMENTS.restored_afterwards() as names:
        names.register("one_camera", OneCamera())
        asked = job_of(controls=["shuffled_cameras"], arena_env_args={"environment": "one_camera"})
        [problem] = file_of(asked).problems
    assert problem.key == "controls"
    assert "'shuffled_cameras': variation 'picture.exchanged' needs several cameras of one size" in problem.message


def table_of(directory: Path) -> pd.DataFrame:
    return pd.read_csv(directory / "controls.csv").set_index(["job", "control"])


def test_a_policy_that_looks_and_listens_is_not_explained_and_one_command_runs_all(tmp_path, capsys):
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job_of(), OTHER]}))
    run = tmp_path / "run"
    assert main(["controls", str(tmp_path / "jobs.json"), "--output_dir", str(run)]) == 0
    table = table_of(run)
    assert [control for _, control in table.index] == ["benign", *ALL]
    rates = table.loc["lamp", "success_rate"]
    assert rates["benign"] == 1.0
    assert rates["no_instruction"] == rates["swapped_instruction"] == 0.0
    # The policy goes left if it sees no bright lamp, as its mean action does for one side at most.
    right = rates["blind"]
    assert 0.2 < right < 0.8
    assert rates["shuffled_cameras"] == right
    assert rates["mean_action"] == 0.0
    assert rates["open_loop"] < 1.0
    assert (table.loc["lamp", "pairs"].drop("benign") == 12).all()
    assert (table.loc["lamp", "explained"].drop("benign") == rates.drop("benign")).all()
    assert "of the benign rate, the most of 6 controls" in capsys.readouterr().out
    assert "Without looking or listening" in (run / "report.html").read_text()

    # A finished run is read again, and nothing runs.
    before = (run / "control_arms" / "run.json").stat()
    (run / "controls.csv").unlink()
    assert main(["controls", str(run)]) == 0
    pd.testing.assert_frame_equal(table_of(run), table)
    assert (run / "control_arms" / "run.json").stat() == before


def test_the_controls_of_a_suite_have_a_line_for_the_mean_of_its_tasks(tmp_path):
    asked = ["blind", "swapped_instruction"]
    job = job_of(
        name="lamps", suite="lamps", controls=asked, arena_env_args={"environment": None, "task_description": None}
    )
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    run = tmp_path / "run"
    with SUITES.restored_afterwards() as suites:
        suites.register("lamps", Lamps())
        assert main(["run", str(tmp_path / "jobs.json"), "--output_dir", str(run)]) == 0
    assert main(["controls", str(run)]) == 0
    table = table_of(run)
    assert table.loc["lamps", "tasks"].tolist() == [2, 2, 2]
    # The words exchanged between the tasks let the policy succeed in the other one, as often.
    assert table.loc[("lamps", "benign"), "success_rate"] == 0.5
    assert table.loc[("lamps", "swapped_instruction"), "explained"] == 1.0
    assert table.loc[("lamps-go", "swapped_instruction"), "explained"] == 0.0
    assert pd.isna(table.loc[("lamps-stay", "swapped_instruction"), "explained"])
    suites_table = pd.read_csv(run / "suites.csv")
    assert suites_table["name"].tolist() == ["lamps", "lamps-blind", "lamps-swapped_instruction"]
    assert suites_table["tasks"].tolist() == [2, 2, 2]


def test_the_page_answers_for_the_job_itself_and_shows_its_controls_even_if_all_of_them_played_its_recording(tmp_path):
    for name, asked in (("recorded", ["mean_action"]), ("both", ["no_instruction", "mean_action"])):
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job_of(controls=asked)]}))
        assert main(["controls", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / name)]) == 0
        page = (tmp_path / name / "report.html").read_text()
        assert "of the benign rate" in page
        assert "lamp succeeds in 100.0 % " in page
        assert "12 of 12 episodes, with the 95 % interval" in page


def test_a_recording_with_gaps_or_none_is_no_control(tmp_path, capsys):
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job_of(controls=["mean_action"])]}))
    run = tmp_path / "run"
    assert main(["controls", str(tmp_path / "jobs.json"), "--output_dir", str(run), "--no_dataset"]) == 2
    assert "no recording at" in capsys.readouterr().err
    assert not (run / "control_arms").exists()


def test_watches_do_not_take_controls():
    refused = read_jobs({"jobs": [job_of()]}, source="jobs.yaml").problems
    assert [problem.key for problem in refused] == ["controls"]


def test_arms_share_the_seed_and_episodes_of_their_job():
    benign, _, *arms = file_of(job_of(seed=5), OTHER).jobs
    for arm in arms:
        same = {"name": benign.name, "labels": benign.labels, "index": benign.index, "controls": benign.controls}
        assert replace(arm, **same, variations={}, language_instruction=None) == benign
