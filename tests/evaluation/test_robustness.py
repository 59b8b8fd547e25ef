"""The axes of a robustness suite, as jobs."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from isaaclab_arena.config.expansion.suites import Robustness
from isaaclab_arena.config.loading import hash_jobs, read_jobs
from isaaclab_arena.config.schema import JobConfig, SuiteMember
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, Axis, enabled_variations
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import robustness_arms
from tests.end_to_end.launching import ROOT
from tests.environments.variations.varying import catalogue_of


def job_of(environment: str = "lift_object", **more: Any) -> JobConfig:
    options = more.pop("arena_env_args", {})
    job = {"name": "mine", "policy_type": "zero_action", "num_episodes": 2, "seed": 7}
    job |= {"arena_env_args": {"environment": environment, **options}, **more}
    return read_jobs({"jobs": [job]}, source="jobs.yaml").jobs[0]


def test_the_benign_arm_is_the_job_itself_under_another_name():
    job = job_of(variations={"cube.size.enabled": True})
    benign = robustness_arms(job, Robustness(axes=("object_mass",)))[0]
    assert benign.labels == {"robustness": "mine", "axis": "benign", "level": "0"}
    assert replace(benign, name=job.name, labels=job.labels) == job
    assert hash_jobs((replace(benign, name=job.name),)) == hash_jobs((job,))


def test_every_arm_differs_from_the_benign_one_in_the_variations_of_its_axis_alone():
    benign, *arms = robustness_arms(job_of(), Robustness(axes=("table_height", "object_mass"), levels=(1, 5)))
    assert [arm.name for arm in arms] == [
        "mine-object_mass-1",
        "mine-object_mass-5",
        "mine-table_height-1",
        "mine-table_height-5",
        "mine-all-1",
        "mine-all-5",
    ]
    for arm in arms:
        assert replace(arm, name=benign.name, labels=benign.labels, variations=benign.variations) == benign
    mass, table, both = ({key.partition(".sampler")[0] for key in arms[at].variations} for at in (1, 3, 5))
    assert mass == {"cube.mass.enabled", "cube.mass"}
    assert both == mass | table
    assert arms[5].variations == {**arms[1].variations, **arms[3].variations}


def test_one_axis_alone_needs_no_arm_of_all_together():
    assert len(robustness_arms(job_of(), Robustness(axes=("delay",), levels=(1, 2, 3)))) == 4


def test_axes_that_a_job_cannot_have_are_left_out_of_all_and_said(caplog):
    with caplog.at_level(logging.INFO):
        arms = robustness_arms(job_of("open_drawer"), Robustness(levels=(5,)))
    axes = {arm.labels["axis"] for arm in arms}
    assert {"object_position", "robot_start", "action_noise", "all"} <= axes
    assert not axes & {"object_mass", "light", "camera_pose"}
    said = {line.rpartition(": ")[2]: line for line in caplog.messages}
    assert "object_mass" in said["'open_drawer' has no such variation"]
    assert "light, " in said["it changes pictures only, and the job has no cameras (enable_cameras)"]


def test_the_changed_arms_of_a_suites_task_are_a_suite_of_their_own():
    task = replace(job_of(), suite=SuiteMember(name="mine", suite="any", task="lift"))
    arms = robustness_arms(task, Robustness(axes=("object_mass",), levels=(5,)))
    assert [arm.suite and arm.suite.name for arm in arms] == ["mine", "mine-object_mass-5"]


def test_a_job_with_cameras_has_the_axes_of_pictures():
    arms = robustness_arms(job_of(arena_env_args={"enable_cameras": True}), Robustness(levels=(5,)))
    assert {"light", "camera_pose", "object_color"} <= {arm.labels["axis"] for arm in arms}


FILMED = {"arena_env_args": {"enable_cameras": True}}


@pytest.mark.parametrize(
    ("job", "axis", "level", "told"),
    [
        ({}, "ligth", 1, "did you mean 'light'?"),
        ({}, "object_mas", 1, "did you mean 'object_mass'?"),
        ({}, "object_mass", 12, "robustness.levels: object_mass has no level 12"),
        ({}, "distractors", 7, "distractors has no level 7"),
        ({}, "language", 6, "language has no level 6"),
        (FILMED, "picture_compression", 6, "sampler_cfg.low must be 1 to 100"),
        (FILMED, "table_texture", 6, "sampler_cfg.low must be 0 to 5"),
        ({}, "light", 1, "no cameras"),
        ({}, "table_texture", 1, "no cameras"),
        ({"environment": "reach"}, "object_mass", 1, "'object_mass': 'reach' has no such variation"),
        ({"environment": "reach"}, "object_yaw", 1, "'object_yaw': 'reach' has no such variation"),
        ({"environment": "cartpole"}, "object_mass", 1, "'cartpole' has no such variation"),
        ({"variations": {"cube.mass.enabled": True}}, "object_mass", 1, "varies cube.mass itself"),
        ({"language_instruction": "lift"}, "language", 1, "(language_instruction)"),
        ({"labels": {"axis": "x"}}, None, 1, "labels.axis: "),
        ({"conditions": "saved.json"}, None, 1, "'conditions' says"),
        ({"name": "n" * 70}, None, 1, "name: with an axis"),
    ],
    ids=str,
)
def test_what_a_job_cannot_have_is_refused_with_the_way_out(job, axis, level, told):
    with pytest.raises(ConfigError) as refused:
        robustness_arms(job_of(**job), Robustness(levels=(level,), **({"axes": (axis,)} if axis else {})))
    assert told in "\n".join(str(problem) for problem in refused.value.problems)


DOCUMENT = (ROOT / "docs" / "how_to" / "robustness.md").read_text()
CATALOGUE = catalogue_of("lift_object")


def varied(axis: Axis) -> str:
    """Return the variations that an axis turns on; their ranges are in the catalogue of tasks, which has its test."""
    on = enabled_variations(CATALOGUE, axis.settings(CATALOGUE, EDGE_LEVEL))
    return ", ".join(f"`{each.asset}.{each.name}`" for each in on)


def rows() -> str:
    """Return the rows of the document's table."""
    return "\n".join(
        f"| `{axis.name}` | {axis.libero_plus or '-'} | {'yes' if axis.pictures_only else 'no'} | {varied(axis)} |"
        for axis in AXES.values()
    )


def test_the_documented_axes_are_the_programs():
    assert rows() in DOCUMENT, f"paste this into docs/how_to/robustness.md:\n{rows()}"
