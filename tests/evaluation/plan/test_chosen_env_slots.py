"""The number of env slots of a job that names none."""

import json

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase

REACH = {"name": "reach", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "num_episodes": 50}


class OneMemory(PolicyBase):
    """Promises nothing: it may remember one episode for all env slots."""

    def get_action(self, env, observation):
        raise NotImplementedError


def chosen(*, defaults=None, **keys) -> int:
    file = read_jobs({"jobs": [{**REACH, **keys}]}, source="jobs.json", defaults=defaults)
    (job,) = resolve_jobs(file.jobs)
    return job.config.num_envs


def with_slots(num_envs) -> dict[str, object]:
    return {"arena_env_args": {"environment": "reach", "num_envs": num_envs}}


def test_as_many_as_pay_and_not_more_than_episodes_of_a_build():
    assert chosen() == chosen(**with_slots("auto")) == 16
    assert chosen(num_episodes=5) == 5
    assert chosen(num_episodes=10, num_rebuilds=3) == 4
    assert chosen(policy_type="random_action") == 16


def test_a_number_that_the_user_gives_stays():
    assert chosen(**with_slots(1)) == 1
    assert chosen(defaults=JobDefaults(num_envs=3)) == 3
    assert chosen(defaults=JobDefaults(num_envs=3), **with_slots(2)) == 2


def test_one_where_more_would_change_the_episodes():
    steps = {**REACH, "num_steps": 30}
    del steps["num_episodes"]
    (job,) = resolve_jobs(read_jobs({"jobs": [steps]}, source="jobs.json").jobs)
    assert job.config.num_envs == 1
    assert chosen(policy_type=f"{__name__}.OneMemory") == 1


def test_files_in_forms_of_arena_keep_the_one_that_they_mean_there():
    tokens = {**REACH, "arena_env_args": ["reach", "--embodiment", "panda"]}
    run = {"environment": {"type": "reach"}, "policy": {"type": "scripted"}, "rollout_limit": {"num_episodes": 50}}
    for document in ({"jobs": [tokens]}, {"runs": {"reach": run}}):
        (job,) = resolve_jobs(read_jobs(document, source="jobs.json").jobs)
        assert job.config.num_envs == 1


def test_a_text_that_is_no_number_is_refused():
    (problem,) = read_jobs({"jobs": [{**REACH, **with_slots("many")}]}, source="jobs.json").problems
    assert problem.key == "arena_env_args.num_envs"


@pytest.mark.parametrize("assignment", ["round_robin", "dynamic"])
def test_a_resumed_run_keeps_the_number_that_it_began_with(tmp_path, assignment):
    run = ["--output_dir", str(tmp_path / "out"), "--assignment", assignment]
    for num_episodes, resumes in ((3, []), (8, ["--resume"])):
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [{**REACH, "num_episodes": num_episodes}]}))
        assert main(["run", str(tmp_path / "jobs.json"), *run, *resumes]) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["jobs"][0]["config"]["num_envs"] == 3
    (attempts,) = [json.loads((tmp_path / "out" / "attempts" / "attempt_2.json").read_text())["jobs"]]
    assert [each["chosen_num_envs"] for each in attempts] == [3]
    lines = (tmp_path / "out" / "reach" / "episode_results_rank0.jsonl").read_text().splitlines()
    assert {json.loads(line)["env_id"] for line in lines} == {0, 1, 2}
