"""Variations between an environment and its policy, around environments of any kind."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.expansion.suites import Robustness
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.environments.variations.pictures import seen_from, tone_table
from isaaclab_arena.environments.variations.senses import (
    JOLT_STEPS,
    SensedEnvironment,
    build_varied,
    heard,
    offered_variations,
    sense_variations,
)
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.evaluation.validation import robustness_arms
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.specs import CAMERAS, ArraySpec, picture_layout, pictures_of
from tests.environments.building import CPU, episode
from tests.environments.gym.gym_running import IN_WORKERS
from tests.environments.variations.varying import fixed
from tests.evaluation.looking import LAMP
from tests.fakes import CoinConfig, CoinEnvironment

SEEN = "gym:tests.environments.gym.gym_pictures:Fake/Seen-v0"
CHOICES = "gym:CartPole-v1"
NUM_STEPS = 4


def build(name: str, *overrides: dict[str, Any], num_envs: int = 1, **options: Any) -> Environment:
    builder = ENVIRONMENTS.get(name)
    config = builder.config_class(**options)
    merged = {key: value for each in overrides for key, value in each.items()}
    on = enabled_variations(offered_variations(builder, config), merged)
    return build_varied(builder, config, variations=on, num_envs=num_envs, device=CPU, num_threads=1)


def played(env: Environment, *indices: int) -> list[list[tuple[bytes, bytes]]]:
    """Return the numbers and pictures of each step of episodes, the n-th in env slot n."""
    conditions = [
        env.vary_conditions(env.draw_conditions(each.conditions_generator()), each) for each in map(episode, indices)
    ]
    actions = [torch.full((env.num_envs, 2), 0.1 * number) for number in range(1, NUM_STEPS + 1)]
    seen = [env.reset(torch.arange(len(indices)), conditions), *(env.step(action).observation for action in actions)]
    env.close()
    shown = [(each["policy"]["place"].numpy(), pictures_of(each[CAMERAS]["front"])) for each in seen]
    return [
        [(numbers[slot].tobytes(), pictures[slot].numpy().tobytes()) for numbers, pictures in shown]
        for slot in range(len(indices))
    ]


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    builder = ENVIRONMENTS.get(SEEN)
    offered = offered_variations(builder, builder.config_class())
    return {f"{each.key}.enabled": True for each in offered if each.key not in ("action.idle", "picture.exchanged")}


def test_an_episode_is_disturbed_alike_in_any_env_slot_and_in_workers(everything):
    alone = [played(build(SEEN, everything), index)[0] for index in range(3)]
    assert played(build(SEEN, everything, num_envs=3), 0, 1, 2) == alone
    assert played(build(SEEN, everything, num_envs=3, **IN_WORKERS), 0, 1, 2) == alone
    plain = [played(build(SEEN), index)[0] for index in range(3)]
    pairs = [pair for sides in zip(alone, plain, strict=True) for pair in zip(*sides, strict=True)]
    assert all(mine != its for mine, its in pairs)


def test_what_changes_nothing_gives_the_same_bits():
    nothing = {
        **fixed("action.noise", 0.0),
        **fixed("observation.delay", 0),
        **fixed("picture.tilt", 0.0),
        **fixed("picture.contrast", 1.0),
        **fixed("picture.dropped", 0.0),
        **fixed("action.jolt", 0.0),
    }
    assert played(build(SEEN, nothing), 3) == played(build(SEEN), 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("picture.contrast", 0.5),
        ("picture.brightness", 0.5),
        ("picture.offset", [0.2, 0.0]),
        ("picture.tilt", 0.5),
        ("picture.occlusion", 0.3),
    ],
)
def test_pictures_change_and_numbers_do_not(key, value):
    changed, plain = played(build(SEEN, fixed(key, value)), 1)[0], played(build(SEEN), 1)[0]
    assert [numbers for numbers, _ in changed] == [numbers for numbers, _ in plain]
    assert all(mine != its for (_, mine), (_, its) in zip(changed, plain, strict=True))


def test_a_dropped_picture_is_the_last_one_again_and_the_first_of_an_episode_arrives():
    pictures = [shown for _, shown in played(build(SEEN, fixed("picture.dropped", 1.0)), 2)[0]]
    assert pictures == [played(build(SEEN), 2)[0][0][1]] * (NUM_STEPS + 1)


def test_a_push_lasts_some_steps_and_its_moment_and_direction_do_not_depend_on_its_strength():
    env = build(SEEN, fixed("action.jolt", 0.1, 0.2), num_envs=2)
    own = replace(episode(0), episode_index=0)
    drawn = [{**env.vary_conditions(env.draw_conditions(own.conditions_generator()), own), "action.jolt": each}
             for each in (0.1, 0.2)]  # fmt: skip
    before = env.reset(torch.arange(2), drawn)["policy"]["place"]
    moved: list[torch.Tensor] = []
    for _ in range(9):
        now = env.step(torch.zeros(2, 2)).observation["policy"]["place"]
        moved.append(now - before)
        before = now
    env.close()
    pushed = [step for step in moved if step.any()]
    assert len(pushed) <= JOLT_STEPS
    for step in pushed:
        assert step[0].abs().tolist() == pytest.approx([0.2, 0.2], abs=1e-6)  # a tenth of the range of 2
        assert step[1].tolist() == pytest.approx((2 * step[0]).tolist(), abs=1e-6)


def test_a_robot_that_idles_holds_still_whatever_its_policy_says():
    env = build("reach", fixed("action.idle", 3), action_mode="ee_delta")
    own = episode(0)
    env.reset(torch.arange(1), [env.vary_conditions(env.draw_conditions(own.conditions_generator()), own)])
    action = torch.full((1, *env.action_spec.shape), 0.5)
    places = [env.step(action).observation["policy"]["eef_pos"] for _ in range(6)]
    env.close()
    assert (places[2] - places[0]).abs().max() < 1e-3 < (places[5] - places[2]).abs().max()


def test_words_are_lost_and_misspelt_as_the_episode_says():
    told, seed = "put the red cube into the bin", {"instruction.words_seed": 5}
    assert heard(told, {**seed, "instruction.words": 0.0}) == ""
    assert heard(told, {**seed, "instruction.words": 1.0}) == told
    some = heard(told, {**seed, "instruction.words": 0.5}).split()
    assert len(some) == 4
    assert [word for word in told.split() if word in some][: len(some)] == some
    wrong = heard(told, {**seed, "instruction.misspelt": 1.0}).split()
    assert [sorted(word) for word in wrong] == [sorted(word) for word in told.split()]
    assert all(word[0] == said[0] for word, said in zip(wrong, told.split(), strict=True))
    assert "cube" not in wrong


def shown(**how: Any) -> np.ndarray:
    """Return the pixels that a picture of 4 by 6 shows."""
    view = {"shift": (0.0, 0.0), "turn": 0.0, "occlusion": 0.0, "place": (0.0, 0.0)} | how
    return seen_from(4, 6, **view).reshape(4, 6)


def test_a_view_moves_right_and_down_turns_clockwise_and_is_covered():
    plain = np.arange(24).reshape(4, 6)
    assert (shown() == plain).all()
    moved = shown(shift=(1 / 6, 0.25))
    assert (moved[1:, 1:] == plain[:-1, :-1]).all()
    assert moved[0].tolist() == [0, 0, 1, 2, 3, 4]
    assert (shown(turn=math.pi) == plain[::-1, ::-1]).all()
    # A quarter turn clockwise brings what was above the middle to its right.
    assert shown(turn=math.pi / 2)[1:3, 4].tolist() == [plain[0, 2], plain[0, 3]]
    assert (shown(occlusion=0.25, place=(1.0, 1.0)) == 24).sum() == 6
    assert (shown(occlusion=0.25, place=(1.0, 1.0))[2:, 3:] == 24).all()
    assert (shown(occlusion=1.0) == 24).all()


def test_contrast_spreads_colours_around_grey_and_no_brightness_is_black():
    assert tone_table(0.0, 1.0, 1.0).tolist() == list(range(256))
    assert set(tone_table(0.0, 0.0, 1.0).tolist()) == {128}
    assert tone_table(0.0, 2.0, 1.0)[[0, 100, 200]].tolist() == [0, 72, 255]
    assert tone_table(0.0, 1.0, 0.5)[[0, 100, 200]].tolist() == [0, 50, 100]
    assert set(tone_table(1.0, 2.0, 0.0).tolist()) == {0}


def test_robustness_of_an_environment_made_elsewhere_has_the_axes_around_it():
    fields = {"name": "a", "arena_env_args": {"environment": CHOICES, "enable_cameras": True}, "num_episodes": 1}
    [job] = read_jobs({"jobs": [{**fields, "policy_type": "zero_action"}]}, source="jobs.yaml").jobs
    axes = [arm.labels["axis"] for arm in robustness_arms(job, Robustness(axes=None, levels=(1,)))]
    assert axes[:2] == ["benign", "action_noise"]
    assert {"sensor_noise", "delay", "picture_blur", "all"} <= {*axes}
    assert not {"object_mass", "light", "language"} & {*axes}


def test_cameras_of_an_env_slot_exchange_their_pictures():
    env = build(LAMP, fixed("picture.exchanged", 0, 1), num_envs=2)
    own = episode(1)
    drawn = {**env.vary_conditions(env.draw_conditions(own.conditions_generator()), own)}
    seen = env.reset(torch.arange(2), [{**drawn, "picture.exchanged": each} for each in (0, 1)])[CAMERAS]
    front, side = (pictures_of(seen[name]) for name in ("front", "side"))
    assert (front[0] >= 120).all()
    assert torch.equal(front[0], side[1])
    assert torch.equal(side[0], front[1])
    env.close()


def test_an_environment_is_closed_with_the_senses_around_it():
    closed: list[str] = []
    wrapper: Any = build(CHOICES, fixed("observation.delay", 1))
    wrapper.real.close = lambda: closed.append("environment")
    wrapper.close()
    assert closed == ["environment"]


def test_a_policy_that_hears_no_words_gets_none_by_any_way():
    env = build("reach", fixed("instruction.words", 0.0))
    assert (env.task_description, env.instruction({"instruction.words": 0.0, "instruction.words_seed": 1})) == ("", "")


@pytest.mark.parametrize("shape", [(5, 6, 3), (3, 5, 6), (5, 6), (5, 6, 1), (1, 5, 6), (5, 6, 4)])
def test_pictures_of_any_layout_keep_it(shape):
    layout, pictures = picture_layout(shape, torch.uint8), torch.arange(2 * math.prod(shape)).reshape(2, *shape).byte()
    assert torch.equal(layout.restored(layout.colours(pictures), pictures), pictures)


REFUSED = {
    "choices": (CHOICES, fixed("action.noise", 0.1), {}, "action.noise"),
    "no stillness": ("reach", fixed("action.idle", 3), {}, "action.idle"),
    "nothing to blacken": (CHOICES, fixed("picture.brightness", 0.0), {}, "picture.brightness"),
    "one camera": (SEEN, fixed("picture.exchanged", 1), {}, "several cameras of one size; there are front"),
    "two sizes": (LAMP, fixed("picture.exchanged", 1), {"make_kwargs": {"wide": True}}, "side .4, 6, 3."),
    "no pictures": (CHOICES, fixed("picture.blur", 1.0), {"enable_cameras": True}, "picture.blur"),
}


@pytest.mark.parametrize(("name", "overrides", "options", "key"), REFUSED.values(), ids=REFUSED)
def test_a_variation_that_an_environment_cannot_have_is_refused(name, overrides, options, key):
    with pytest.raises(EnvironmentBuildError, match=key):
        build(name, overrides, **options)


def test_pictures_whose_layout_is_not_certain_are_refused_and_depths_stay():
    real = CoinEnvironment(CoinConfig(), 1)
    blur = [each for each in sense_variations() if each.key == "picture.blur"]
    real.observation_spec = {CAMERAS: {"depth": ArraySpec(shape=(4, 5, 6))}}
    SensedEnvironment(real, blur, has_cameras=True)
    real.observation_spec = {CAMERAS: {"front": ArraySpec(shape=(4, 5, 6), dtype=torch.uint8)}}
    with pytest.raises(EnvironmentBuildError, match=r"'picture.blur': camera 'front' has shape \(4, 5, 6\)"):
        SensedEnvironment(real, blur, has_cameras=True)
