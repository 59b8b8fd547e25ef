"""What varies in an episode is drawn from streams of the episode, by reference."""

from isaaclab_arena.interfaces.episode import Stream, episode_generator, episode_seed
from tests.environments.variations.varying import build_varied, conditions_of

RANGE = {"enabled": True, "sampler_cfg": {"low": 0.0, "high": 1.0}}


def test_each_variation_is_drawn_from_the_stream_of_its_key():
    env = build_varied("lift_object", {"cube.friction": RANGE, "light.intensity": RANGE})
    for index in (0, 3):
        conditions = conditions_of(env, index, seed=11)
        for key in ("cube.friction", "light.intensity"):
            assert conditions[key] == episode_generator(11, Stream.VARIATION, index, key).random()


def test_each_episode_has_action_noise_of_its_own_seed():
    env = build_varied("lift_object", {"action.noise": {"enabled": True}})
    seeds = [conditions_of(env, index, seed=11)["action.noise_seed"] for index in range(3)]
    assert seeds == [episode_seed(11, Stream.NOISE, index) for index in range(3)]
