import pytest
import torch

from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, episode, hold_still, play
from tests.environments.moving import put, solve


def test_each_episode_has_an_instruction_of_its_own():
    records = play(build("pick_by_colour", num_envs=4), ScriptedPolicy(), 12).records.values()
    told = {record.language_instruction for record in records}
    assert told == {"pick up the red cube", "pick up the blue cube"}
    assert all(str(record.conditions["goal.colour"]) in record.language_instruction for record in records)
    assert sum(record.outcome is Outcome.SUCCESS for record in records) >= 11


def test_whoever_follows_another_instruction_fails():
    env = build("pick_by_colour")
    asked = env.draw_conditions(episode(0).conditions_generator())["goal.colour"]
    other = "blue" if asked == "red" else "red"
    steps = solve(env, told=f"pick up the {other} cube")
    assert steps[-1].terminated
    assert not steps[-1].success


def test_no_observation_tells_which_cube_is_asked_for():
    env = build("pick_by_colour", num_envs=2)
    conditions = dict(env.draw_conditions(episode(0).conditions_generator()))
    both = [{**conditions, "goal.colour": colour} for colour in ("red", "blue")]
    observation = env.reset(torch.arange(2), both)
    assert all(torch.equal(value[0], value[1]) for value in observation["policy"].values())
    assert [env.instruction(each) for each in both] == ["pick up the red cube", "pick up the blue cube"]


@pytest.mark.parametrize("colour", ["red", "blue"])
def test_the_other_cube_in_the_air_loses(colour):
    env = build("pick_by_colour")
    conditions = {**env.draw_conditions(episode(0).conditions_generator()), "goal.colour": colour}
    env.reset(torch.tensor([0]), [conditions])
    put(env, "blue" if colour == "red" else "red", (0.5, 0.2, 0.2))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success
