"""The seeds and streams of an episode, by reference values: recorded ones must mean the same in every later version."""

from isaaclab_arena.interfaces.episode import Episode, Stream, conditions_from_json, episode_generator, episode_seed

PLAIN = Episode(job="a", episode_index=7, seed=42)
PLACED = Episode(job="a", episode_index=7, seed=42, conditions_seed=5)


def first(generator) -> float:
    return generator.random()


def test_each_use_of_an_episode_has_the_stream_of_its_number():
    assert first(PLAIN.conditions_generator()) == first(episode_generator(42, Stream.CONDITIONS, 7))
    assert first(PLAIN.policy_generator()) == first(episode_generator(42, Stream.POLICY, 7))
    assert first(PLAIN.variation_generator("cube.mass")) == first(
        episode_generator(42, Stream.VARIATION, 7, "cube.mass")
    )
    assert PLAIN.noise_seed == episode_seed(42, Stream.NOISE, 7)
    assert PLAIN.episode_seed == episode_seed(42, Stream.CONDITIONS, 7)


def test_a_seed_of_the_conditions_decides_everything_but_the_policys_noise():
    conditions = Episode(job="a", episode_index=7, seed=5)
    assert first(PLACED.conditions_generator()) == first(conditions.conditions_generator())
    assert first(PLACED.variation_generator("x")) == first(conditions.variation_generator("x"))
    assert (PLACED.noise_seed, PLACED.episode_seed) == (conditions.noise_seed, conditions.episode_seed)
    assert first(PLACED.policy_generator()) == first(PLAIN.policy_generator())
    assert PLACED.episode_seed != PLAIN.episode_seed


def test_one_variation_does_not_shift_another():
    generators = [PLAIN.variation_generator(name) for name in ("cube.mass", "cube.friction", "table.height")]
    assert len({first(generator) for generator in generators}) == 3


def test_the_name_of_a_job_decides_nothing():
    """Two jobs of one environment and seed meet the same conditions, so that they can be compared in pairs."""
    other = Episode(job="another", episode_index=7, seed=42)
    assert first(other.conditions_generator()) == first(PLAIN.conditions_generator())
    assert (other.episode_seed, other.noise_seed) == (PLAIN.episode_seed, PLAIN.noise_seed)


def test_a_file_has_lists_where_environments_have_tuples():
    assert conditions_from_json({"a": [1.0, 2.0], "b": "red", "c": 3}) == {"a": (1.0, 2.0), "b": "red", "c": 3}
