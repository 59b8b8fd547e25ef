import dataclasses

import pytest

from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.episode import EpisodeEvents, Outcome
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import EndStates, build, episode, play, start
from tests.environments.events.failing_experts import FailingExpert, open_at, standing_still


@pytest.mark.parametrize("task", ["lift_object", "pick_and_place"])
@pytest.mark.parametrize(
    ("expert", "decisive"),
    [
        ({"spoil": standing_still}, "never_moved"),
        ({"beside_m": 0.25}, "never_reached"),
        ({"beside_m": 0.06}, "reached_and_missed"),
        ({"spoil": open_at(0.09)}, "dropped"),
    ],
)
def test_failures_that_were_made_on_purpose_are_named_right(task, expert, decisive):
    record = play(build(task), FailingExpert(**expert), 1).records[0]
    assert record.success is False
    assert record.events is not None
    assert record.events.decisive == decisive
    assert 0 <= record.events.progress < 1


def test_events_and_progress_are_the_same_for_any_number_of_env_slots():
    one = play(build("pick_and_place"), ScriptedPolicy(), 5, seed=3).records
    four = play(build("pick_and_place", num_envs=4), ScriptedPolicy(), 5, seed=3).records
    assert {index: each.events for index, each in one.items()} == {index: each.events for index, each in four.items()}
    assert all((each.events.progress == 1) == (each.outcome is Outcome.SUCCESS) for each in one.values() if each.events)


def test_a_task_that_is_solved_at_its_start_is_told_at_once_with_job_episode_and_seed(caplog):
    env = build("reach")
    usual = env.draw_conditions(episode(7).conditions_generator())
    start(env)
    hand = tuple(env.backend.site_position("robot/tcp")[0].tolist())
    there = dataclasses.replace(episode(7, seed=5), saved_conditions={**usual, "target.position": hand})
    ends = EndStates()
    rollout(env, FailingExpert(standing_still), [there], [ends])
    assert ends.records[7].events == EpisodeEvents(progress=1.0, decisive=None, seen={"solved_at_start": (0, 1)})
    assert "job 'test', episode 7, seed 5: the task 'move the gripper to the green marker' was solved" in caplog.text
