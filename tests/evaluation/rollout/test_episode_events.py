import dataclasses
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.events import Moments
from isaaclab_arena.environments.tasks.grasping import OBJECT_JOINT
from isaaclab_arena.environments.tasks.pushing import GOAL_BODY
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout, rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import ALL_ENVIRONMENTS, EndStates, build, episode, play, start
from tests.environments.events.failing_experts import (
    FailingExpert,
    higher_than,
    joint_beyond,
    once,
    pushed_near,
    standing_still,
)
from tests.fakes import Notebook
from tests.fakes_environment import SOLVED_LENGTHS, PushPolicy, ScriptedEnvironment, SolvedEnvironment
from tests.fakes_environment import episodes as push_episodes

_STILL = ((0.0, 0.0, 0.0), 0.0, 1)
_OPEN = ((0.0, 0.0, 0.0), 0.08, 1)
_BACK = ((-0.03, 0.0, 0.0), 0.08, 1)
_LEFT = ((0.0, 0.03, 0.0), 0.0, 1)


@pytest.mark.parametrize("task", ALL_ENVIRONMENTS)
def test_whoever_stands_still_in_any_task_never_moved(task):
    assert decided(task, FailingExpert(standing_still)) == "never_moved"


@pytest.mark.parametrize(
    ("task", "expert", "decisive"),
    [
        ("lift_object", {"beside_m": 0.25}, "never_reached"),
        ("open_drawer", {"beside_m": 0.25}, "never_reached"),
        ("press_button", {"beside_m": 0.25}, "never_reached"),
        ("reach", {"beside_m": 0.25}, "never_reached"),
        ("lift_object", {"beside_m": 0.06}, "reached_and_missed"),
        ("pick_and_place", {"beside_m": 0.06}, "reached_and_missed"),
        ("press_button", {"beside_m": 0.06}, "reached_and_missed"),
        ("reach", {"beside_m": 0.06}, "reached_and_missed"),
        ("pick_by_colour", {"swapped": ("red", "blue")}, "wrong_object"),
        ("stack", {"swapped": ("red", "blue")}, "wrong_object"),
        ("sort_two", {"swapped": ("left_bin", "right_bin")}, "wrong_object"),
    ],
)
def test_experts_that_go_elsewhere_are_named_right(task, expert, decisive):
    assert decided(task, FailingExpert(**expert)) == decisive


@pytest.mark.parametrize(
    ("task", "spoil", "decisive"),
    [
        ("lift_object", once(higher_than(0.09), _OPEN), "dropped"),
        ("pick_and_place", once(higher_than(0.09), _OPEN), "dropped"),
        ("stack", once(higher_than(0.09, "red"), _OPEN), "dropped"),
        ("sort_two", once(higher_than(0.09, "red"), _OPEN), "dropped"),
        ("lift_object", once(higher_than(0.05), _STILL), "stalled"),
        ("pick_by_colour", once(higher_than(0.098, "blue"), _STILL), "almost"),
        ("lift_object", once(higher_than(0.09), (*_LEFT[:2], 40), _OPEN), "fell_off_table"),
        ("push_cube", once(pushed_near(0.06), _STILL), "almost"),
        ("push_to_goal", once(pushed_near(0.05), _LEFT), "pushed_away"),
        ("open_drawer", once(joint_beyond("cabinet/slide", 0.075), _BACK), "dropped"),
        ("open_microwave", once(joint_beyond("microwave/hinge", 0.5), _BACK), "dropped"),
        ("close_drawer", once(joint_beyond("cabinet/slide", 0.08, sign=-1), _BACK), "reached_and_missed"),
        ("press_button", once(joint_beyond("button/press", 0.006), ((0.0, 0.0, 0.03), 0.0, 1)), "reached_and_missed"),
    ],
)
def test_experts_that_do_something_else_on_the_way_are_named_right(task, spoil, decisive):
    assert decided(task, FailingExpert(spoil), action_mode="ee_delta") == decisive


def decided(task: str, expert: FailingExpert, **options: Any) -> str | None:
    """Return the event that a failure is put down to, which has to be one."""
    record = play(build(task, **options), expert, 1).records[0]
    assert record.success is False
    assert record.events is not None
    assert 0 <= record.events.progress < 1
    return record.events.decisive


@pytest.mark.parametrize("task", ALL_ENVIRONMENTS)
def test_the_goal_that_is_judged_at_the_start_is_the_one_of_the_events(task):
    kept = KeptMoments()
    environment = build(task)
    rollout(environment, ScriptedPolicy(), [episode(0)], [kept])
    met = kept.facts.met
    assert bool(met[-1])
    assert not bool(met[0])
    assert isinstance(environment, ArenaEnvironment)
    goal = environment.task.goal_met(kept.moments, torch.zeros(len(kept.moments), dtype=torch.int64))
    assert goal is not None
    assert torch.equal(goal, met)


@pytest.mark.parametrize(("task", "has_strayed"), [("push_cube", False), ("push_to_goal", True)])
def test_a_cube_may_be_pushed_on_any_of_its_sides_and_a_can_may_not(task, has_strayed):
    environment, moments, pose = pushed(task)
    moments.qpos[:, pose[3:]] = moments.qpos.new_tensor([0.5**0.5, 0.5**0.5, 0.0, 0.0])
    strayed = environment.task.facts(moments, 0).strayed_m
    assert strayed is not None
    assert bool(strayed[-1] > 0.5) is has_strayed


def test_what_is_pushed_has_strayed_as_far_as_it_is_farther_from_the_goal_than_at_first():
    environment, moments, pose = pushed("push_cube")
    goal = moments.body_position(GOAL_BODY)[0, :2]
    at_first = moments.qpos[0, pose[:2]].clone()
    for moment, way in ((1, 0.5), (2, 0.0), (3, -0.5)):
        moments.qpos[moment, pose[:2]] = at_first + way * (goal - at_first)
    strayed = environment.task.facts(moments, 0).strayed_m
    assert strayed is not None
    way_m = (goal - at_first).norm()
    assert torch.allclose(strayed[:4], torch.tensor([0.0, -0.5, 0.0, 0.5], dtype=way_m.dtype) * way_m, atol=1e-6)


def pushed(task: str) -> tuple[ArenaEnvironment, Moments, torch.Tensor]:
    """Return an environment, the moments of an episode in it, and where in ``qpos`` the pose of its object is."""
    kept, environment = KeptMoments(), build(task)
    rollout(environment, ScriptedPolicy(), [episode(0)], [kept])
    assert isinstance(environment, ArenaEnvironment)
    pose = kept.moments.names.joint_qpos[OBJECT_JOINT]
    return environment, kept.moments, torch.arange(pose.start, pose.stop)


class KeptMoments(Observer):
    """Keeps the moments of the last episode, and what its task says of them."""

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        assert isinstance(environment, ArenaEnvironment)
        (self.moments,) = environment.kept_moments([record.env_id])
        self.facts = environment.task.facts(self.moments, record.env_id)


def test_events_and_progress_are_the_same_for_any_number_of_env_slots():
    one = play(build("pick_and_place"), ScriptedPolicy(), 5, seed=3).records
    four = play(build("pick_and_place", num_envs=4), ScriptedPolicy(), 5, seed=3).records
    assert {index: each.events for index, each in one.items()} == {index: each.events for index, each in four.items()}
    assert all((each.events.progress == 1) == (each.outcome is Outcome.SUCCESS) for each in one.values() if each.events)


class Moved(Observer):
    """Keeps the episodes that made a step."""

    def __init__(self) -> None:
        self.starts: dict[tuple[Environment, int], int] = {}
        self.indices: set[int] = set()

    def on_episode_start(self, environment, starts, observation) -> None:
        self.starts |= {(environment, each.env_id): each.episode.episode_index for each in starts}

    def on_step(self, environment, transition) -> None:
        running = torch.nonzero(transition.running).flatten().tolist()
        self.indices |= {self.starts[environment, env_id] for env_id in running}


NUM_EPISODES = 40


def one_after_the_other(make: type[ScriptedEnvironment], *observers: Observer) -> None:
    rollout(make(4), PushPolicy(), push_episodes(NUM_EPISODES), observers)


def in_turns(make: type[ScriptedEnvironment], *observers: Observer) -> None:
    groups = [EnvGroup(environment=make(size), policy=PushPolicy()) for size in (3, 1)]
    pipelined_rollout(groups, push_episodes(NUM_EPISODES), observers)


@pytest.mark.parametrize("drive", [one_after_the_other, in_turns])
def test_an_episode_that_is_solved_at_its_start_ends_there_and_no_other_changes(drive):
    usual, notebook, moved = Notebook(), Notebook(), Moved()
    drive(ScriptedEnvironment, usual)
    drive(SolvedEnvironment, notebook, moved)
    expected = {record.episode.episode_index: record for record in usual.records}
    found = {record.episode.episode_index: record for record in notebook.records}
    assert sorted(found) == sorted(expected) == list(range(NUM_EPISODES))
    solved = {index for index, each in expected.items() if each.conditions["script.length"] in SOLVED_LENGTHS}
    assert 0 < len(solved) < NUM_EPISODES
    for index, record in found.items():
        if index in solved:
            assert (record.outcome, record.success, record.termination) == (Outcome.ERROR, None, "solved_at_start")
            assert (record.length, record.episode_return, record.metrics) == (0, 0.0, {})
        else:
            before = dataclasses.replace(expected[index], env_id=record.env_id)
            assert repr(record) == repr(before)
    assert moved.indices == found.keys() - solved


def test_where_steps_decide_and_every_start_is_solved_the_job_ends_as_an_error():
    environment = SolvedEnvironment(2)
    environment.solved_at_start = lambda env_ids: [True] * len(env_ids)
    with pytest.raises(ArenaError, match="one after the other, ended at their start: no step is made"):
        rollout(environment, PushPolicy(), push_episodes(5000), [], limits=RolloutLimits(max_steps=10))


def test_an_episode_that_is_solved_at_its_start_is_an_error_that_names_job_episode_seed_and_task(caplog):
    env = build("reach")
    usual = env.draw_conditions(episode(7).conditions_generator())
    start(env)
    hand = tuple(env.backend.site_position("robot/tcp")[0].tolist())
    there = dataclasses.replace(episode(7, seed=5), saved_conditions={**usual, "target.position": hand})
    ends = EndStates()
    rollout(env, FailingExpert(standing_still), [there], [ends])
    record = ends.records[7]
    assert (record.outcome, record.success, record.events) == (Outcome.ERROR, None, None)
    assert (record.termination, record.length) == ("solved_at_start", 0)
    assert record.error is not None
    assert "the task 'move the gripper to the green marker' was solved at the start" in record.error
    assert f"job 'test', episode 7, seed 5: {record.error}" in caplog.text
