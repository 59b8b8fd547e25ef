"""Events of episodes in a rollout."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment, FloorEnvironment
from isaaclab_arena.environments.events import FloorFacts, floor_progress_of
from isaaclab_arena.environments.mdp.task import FloorTask
from isaaclab_arena.environments.tasks.walk_humanoid import JOINTS
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions, EpisodeEvents, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    FLOOR_ENVIRONMENTS,
    EndStates,
    build,
    build_on_the_floor,
    episode,
    play,
    start,
)
from tests.environments.failing_experts import (
    FailingExpert,
    higher_than,
    joint_beyond,
    once,
    pushed_near,
    standing_still,
)
from tests.environments.meddling import Meddle, Meddled, balance_pole, glide, put_pole, spin
from tests.fakes import Notebook
from tests.fakes_environment import SOLVED_LENGTHS, ActionLog, PushPolicy, ScriptedEnvironment, SolvedEnvironment
from tests.fakes_environment import episodes as push_episodes

_STILL = ((0.0, 0.0, 0.0), 0.0, 1)
_OPEN = ((0.0, 0.0, 0.0), 0.08, 1)
_BACK = ((-0.03, 0.0, 0.0), 0.08, 1)
_LEFT = ((0.0, 0.03, 0.0), 0.0, 1)


@pytest.mark.parametrize(
    ("task", "expert", "decisive"),
    [
        *((task, {"spoil": standing_still}, "never_moved") for task in ALL_ENVIRONMENTS),
        # Experts that go elsewhere.
        ("reach", {"beside_m": 0.25}, "never_reached"),
        ("pick_and_place", {"beside_m": 0.06}, "reached_and_missed"),
        ("press_button", {"beside_m": 0.06}, "reached_and_missed"),
        ("stack", {"swapped": ("red", "blue")}, "wrong_object"),
        ("sort_two", {"swapped": ("left_bin", "right_bin")}, "wrong_object"),
    ],
)
def test_experts_that_do_nothing_or_go_elsewhere_are_named_right(task, expert, decisive):
    assert failed(task, FailingExpert(**expert), max_steps=30 if "spoil" in expert else 110).decisive == decisive


@pytest.mark.parametrize(
    ("task", "spoil", "decisive"),
    [
        ("lift_object", once(higher_than(0.09), _OPEN), "dropped"),
        ("stack", once(higher_than(0.09, "red"), _OPEN), "dropped"),
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
    assert failed(task, FailingExpert(spoil), action_mode="ee_delta").decisive == decisive


def failed(task: str, expert: FailingExpert, *, max_steps: int = 110, **options: Any) -> EpisodeEvents:
    """Return the events of an episode, which has to be a failure."""
    environment = build(task, **options)
    environment.max_episode_length = max_steps
    record = play(environment, expert, 1).records[0]
    assert record.success is False
    assert 0 <= told(record).progress < 1
    return told(record)


@pytest.mark.parametrize("task", ALL_ENVIRONMENTS)
def test_the_goal_that_is_judged_at_the_start_is_the_one_of_the_events(task):
    kept = KeptMoments()
    environment = build(task)
    rollout(environment, ScriptedPolicy(), [episode(0)], [kept])
    met = kept.facts.met
    assert bool(met[-1])
    assert not bool(met[0])
    assert isinstance(environment, ArenaEnvironment)
    goal = environment.task.goal_met(kept.moments, torch.zeros(len(kept.moments.qpos), dtype=torch.int64))
    assert goal is not None
    assert torch.equal(goal, met)


class KeptMoments(Observer):
    """Keeps the moments of the last episode, and what its task says of them."""

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        assert isinstance(environment, ArenaEnvironment)
        assert environment.moments is not None
        (self.moments,) = environment.moments.moments([record.env_id])
        self.facts = environment.task.facts(self.moments, record.env_id)


NUM_EPISODES = 40


def test_an_episode_that_is_solved_at_its_start_ends_there_and_no_other_changes():
    usual, notebook, log = Notebook(), Notebook(), ActionLog()
    rollout(ScriptedEnvironment(4), PushPolicy(), push_episodes(NUM_EPISODES), [usual])
    rollout(SolvedEnvironment(4), PushPolicy(), push_episodes(NUM_EPISODES), [notebook, log])
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
    assert {index for index, made in log.actions.items() if len(made)} == found.keys() - solved


def test_where_steps_decide_and_every_start_is_solved_the_job_ends_as_an_error():
    environment = SolvedEnvironment(2)
    environment.solved_at_start = lambda env_ids: [True] * len(env_ids)
    with pytest.raises(ArenaError, match="ended at their start"):
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
    assert "move the gripper to the green marker" in record.error
    assert f"job 'test', episode 7, seed 5: {record.error}" in caplog.text


MODELS = Path(__file__).parents[3] / "models"
STARTS = (
    *((name, {}) for name in FLOOR_ENVIRONMENTS),
    ("cartpole", {"start": "hanging"}),
    ("track_motion", {"start": "anywhere"}),
)
"""Every task with every kind of start."""


class KeptFacts(Observer):
    """Keeps what the task says of each episode, beside its record."""

    def __init__(self) -> None:
        self.episodes: list[tuple[EpisodeRecord, FloorFacts]] = []

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        assert isinstance(environment, FloorEnvironment)
        assert environment.moments is not None
        (moments,) = environment.moments.moments([record.env_id])
        assert isinstance(environment.task, FloorTask)
        self.episodes.append((record, environment.task.floor_facts(moments, record.env_id)))


@cache
def played(task: str, policy: str, num_envs: int = 1, **options: Any) -> list[tuple[EpisodeRecord, FloorFacts]]:
    """Return the results of two random episodes, or of one of another policy, shared by tests that change nothing."""
    kept = KeptFacts()
    env = build_on_the_floor(task, num_envs=num_envs, **options)
    rollout(env, POLICIES[policy](task), [episode(index) for index in range(1 + (policy == "random"))], [kept])
    return kept.episodes


POLICIES: dict[str, Callable[[str], PolicyBase]] = {
    "zero": lambda task: ZeroActionPolicy(),
    "random": lambda task: RandomActionPolicy(),
    "trained": lambda task: RslRlPolicy.from_dict({"checkpoint_path": str(MODELS / task)}),
}


def told(record: EpisodeRecord) -> EpisodeEvents:
    assert record.events is not None
    return record.events


@pytest.mark.parametrize(("task", "options"), STARTS)
def test_progress_is_1_for_successes_only_and_what_is_told_is_what_is_judged(task, options):
    for policy in POLICIES if not options else ("zero", "random"):
        for record, facts in played(task, policy, **options):
            solved = record.success is True
            progress = floor_progress_of(facts, solved=solved)
            assert (told(record).progress == 1) is (told(record).decisive is None) is solved
            assert (progress[1:] >= progress[:-1]).all()
            assert 0 <= progress[0] <= progress[-1] <= 1
            assert len(progress) == record.length + 1
            over = facts.fallen if facts.off_rail is None else facts.fallen | facts.off_rail
            was_lost = record.termination == "terminated" and not record.success
            # An episode ends in the very step in which it cannot go on; a motion can be lost without a fall.
            assert bool(over[-1]) is was_lost or task == "track_motion"
            assert not bool(over[1:-1].any())
            assert bool(facts.lost[-1]) or not was_lost
            assert not (record.success and bool(facts.lost.any()))


@pytest.mark.parametrize("task", FLOOR_ENVIRONMENTS)
def test_events_and_progress_are_the_same_for_any_number_of_env_slots(task):
    alone, together = (
        {record.episode.episode_index: record.events for record, _ in played(task, "random", num_envs=number)}
        for number in (1, 2)
    )
    assert alone == together


def follow(aside_m: float) -> Meddle:
    """Carry the humanoid through the motion, from frame to frame, so far beside it [m]."""

    def meddle(env: FloorEnvironment, step: int) -> None:
        at = {"motion.start_s": (step - 1) * env.control_dt, "robot.joint_offset": (0.0,) * len(JOINTS)}
        start = env.task.start_state(at)
        env.backend.reset(torch.tensor([0]), [start])
        env.backend.qpos[0, 1] += aside_m

    return meddle


UPRIGHT = {"cart.position": 0.0, "cart.velocity": 0.0, "pole.angle": 0.0, "pole.angular_velocity": 0.0}
HANGING = {**UPRIGHT, "pole.angle": math.pi}
STANDING = {"robot.joint_position": (0.0, 0.8, -1.5) * 4, "robot.yaw": 0.5, "command.velocity": (0.0, 0.0, 0.0)}
FORWARD = {**STANDING, "command.velocity": (0.4, 0.0, 0.0)}
FOLLOWING = {"motion.start_s": 0.0, "robot.joint_offset": (0.0,) * len(JOINTS)}


@pytest.mark.parametrize(
    ("task", "conditions", "policy", "decisive", "max_steps"),
    [
        ("cartpole", UPRIGHT, Meddled(action=1.0), "fell_over", 500),
        ("cartpole", UPRIGHT, Meddled(balance_pole(leaning=0.15, at=90), action=1.0), None, 500),
        ("cartpole", UPRIGHT, Meddled(balance_pole(leaning=0.3, at=90)), "almost", 500),
        ("cartpole", HANGING, Meddled(action=1.0), "left_the_rail", 500),
        ("cartpole", HANGING, Meddled(), "never_moved", 60),
        ("cartpole", HANGING, Meddled(put_pole(0.01, at=200, until=260)), "fell_over", 500),
        ("cartpole", HANGING, Meddled(put_pole(0.0, at=440, until=500)), "out_of_time_while_progressing", 500),
        ("cartpole", HANGING, Meddled(put_pole(0.3, at=380, until=500)), "almost", 500),
        ("cartpole", HANGING, Meddled(put_pole(1.5, at=1, until=500)), "stalled", 60),
        ("velocity_go1", FORWARD, Meddled(), "never_moved", 60),
        ("velocity_go1", STANDING, Meddled(spin(8.0, at=300)), "strayed", 500),
        ("velocity_go1", STANDING, Meddled(spin(3.0, at=300)), "almost", 500),
        ("walk_humanoid", {"command.speed": 0.8}, Meddled(), "never_moved", 60),
        ("walk_humanoid", {"command.speed": 0.8}, Meddled(glide(0.5)), "almost", 500),
        ("walk_humanoid", {"command.speed": 0.8}, Meddled(glide(0.5, until=40)), "stalled", 100),
        ("walk_humanoid", {"command.speed": 0.8}, Meddled(glide(0.3, 0.4)), "strayed", 100),
        ("walk_humanoid", {"command.speed": 0.8}, Meddled(glide(-0.5)), "strayed", 100),
        ("velocity_go1", STANDING, Meddled(), None, 500),
        ("track_motion", FOLLOWING, Meddled(), "fell_over", 300),
        # Beside the motion it is followed nearly, or not at all.
        ("track_motion", FOLLOWING, Meddled(follow(0.11)), "almost", 500),
        ("track_motion", FOLLOWING, Meddled(follow(0.2)), "strayed", 500),
    ],
)
def test_robots_that_fail_on_purpose_are_named_right(task, conditions, policy, decisive, max_steps):
    options = {"start": "hanging"} if conditions is HANGING else {}
    record = one_episode(task, conditions, policy, max_steps=max_steps, **options)
    assert told(record).decisive == decisive
    assert (told(record).progress == 1) is (decisive is None) is bool(record.success)
    assert task != "walk_humanoid" or decisive != "almost" or told(record).progress == pytest.approx(0.893, abs=0.01)


def one_episode(
    task: str, conditions: Conditions, policy: PolicyBase, *, max_steps: int = 500, **options: Any
) -> EpisodeRecord:
    """Play an episode that starts from some conditions, and from those of episode 0 where nothing is said."""
    env = build_on_the_floor(task, **options)
    env.max_episode_length = min(max_steps, env.max_episode_length)
    drawn = env.draw_conditions(episode(0).conditions_generator())
    ends = EndStates()
    rollout(env, policy, [replace(episode(0), saved_conditions={**drawn, **conditions})], [ends])
    return ends.records[0]
