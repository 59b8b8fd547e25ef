import dataclasses
import json
from typing import Any

import torch

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import RunRequest, plan_run, resumed_plan
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.storage.ledger import RunPlan, read_plan_copy, read_run_plan, write_run_plan
from tests.evaluation.jobs import coin_job
from tests.fakes import CoinConfig

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


def plan_of(*jobs, **options: Any) -> RunPlan:
    request = RunRequest(
        jobs=jobs or (coin_job("a"), coin_job("b", index=1)),
        config_hash="abc",
        source_file="jobs.json",
        command_line=(),
        options=RunOptions(**options),
    )
    return plan_run(request, CONTEXT.world_size, [str(torch.device("cpu"))], run_id="run", contents={})


def told(before: RunPlan, now: RunPlan) -> list[str]:
    return [str(problem) for problem in resumed_plan(before, now, has_recorded=lambda _: True)[1]]


def test_a_plan_that_was_written_and_read_again_does_not_differ(tmp_path):
    plan = plan_of()
    write_run_plan(tmp_path, plan)
    assert told(read_run_plan(tmp_path), plan_of()) == []


def test_every_changed_key_of_a_job_is_named_with_both_values():
    changed = coin_job("a", environment=CoinConfig(success_step=7), seed=4, num_episodes=8)
    environment, *others = told(plan_of(coin_job("a")), plan_of(changed))
    assert environment.startswith("job 'a': environment_args: was {")
    assert others == [
        "job 'a': num_episodes: was 10 when the run began, now 8; a run may grow, and not shrink",
        "job 'a': seed: was 0 when the run began, now 4",
    ]


def test_new_missing_and_renamed_jobs_are_named():
    assert told(plan_of(coin_job("a")), plan_of(coin_job("b"))) == ["job 'b': is new", "job 'a': is missing now"]


def test_options_that_decide_what_is_recorded_are_compared():
    assert told(plan_of(), plan_of(compression="gzip")) == ['--compression: was "none" when the run began, now "gzip"']


def test_another_number_of_env_slots_is_left_to_who_builds_the_job():
    few, many = coin_job("a", num_envs=2), coin_job("a", num_envs=8)
    assert told(plan_of(few), plan_of(many)) == []
    begun = plan_of(few)
    assert resumed_plan(begun, plan_of(many), has_recorded=lambda _: True)[0] is begun


def test_a_plan_with_more_episodes_keeps_everything_else(tmp_path):
    few, many = (
        plan_of(coin_job("a"), coin_job("b", index=1)),
        plan_of(coin_job("a"), coin_job("b", index=1, num_episodes=20)),
    )
    assert told(few, many) == []
    revised, _ = resumed_plan(few, many, has_recorded=lambda _: True)
    assert [job.config.num_episodes for job in revised.jobs] == [10, 20]
    write_run_plan(tmp_path, few)
    write_run_plan(tmp_path, revised, revises=True)
    assert told(read_run_plan(tmp_path), many) == told(read_plan_copy(tmp_path), many) == []
    assert read_run_plan(tmp_path).config_hash == few.config_hash


def test_only_a_job_that_has_recorded_nothing_may_have_another_policy():
    before, now = plan_of(coin_job("a", action="zeros")), plan_of(coin_job("a", action="nan"))
    _, (problem,) = resumed_plan(before, now, has_recorded=lambda _: True)
    assert problem.key == "policy options"
    revised, differences = resumed_plan(before, now, has_recorded=lambda _: False)
    assert differences == []
    assert revised.jobs[0].policy_config == {"action": "nan"}


def test_how_long_jobs_may_take_never_matters():
    assert told(plan_of(coin_job("a")), plan_of(coin_job("a", timeout_s=5.0))) == []


def test_other_saved_conditions_under_the_same_name_are_another_run():
    one = dataclasses.replace(coin_job("a", conditions="set.json"), saved_conditions=({"coin.x": 0.5},))
    other = dataclasses.replace(one, saved_conditions=({"coin.x": 0.6},))
    assert "saved conditions" in told(plan_of(one), plan_of(other))[0]


def test_the_task_is_the_jobs_label_or_else_what_is_to_be_done_in_its_environment(tmp_path):
    blocks = [
        {"name": "a", "policy_type": "zero_action", "arena_env_args": {"environment": "lift_object", "object": "can"}},
        {"name": "b", "policy_type": "zero_action", "arena_env_args": {"environment": "cartpole"}},
        {
            "name": "c",
            "policy_type": "zero_action",
            "arena_env_args": {"environment": "reach"},
            "labels": {"task": "t"},
        },
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"defaults": {"num_episodes": 1}, "jobs": blocks}))
    jobs = resolve_jobs(load_jobs_file(path).jobs, file=str(path))
    lift, balance, labelled = (entry.task for entry in plan_of(*jobs).jobs)
    assert lift == "pick up the blue can and lift it"
    assert balance not in (None, "cartpole")
    assert labelled == "t"


def test_the_task_of_an_environment_that_does_not_say_is_its_name():
    assert [entry.task for entry in plan_of(coin_job("a")).jobs] == [coin_job("a").config.environment]
