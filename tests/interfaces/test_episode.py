"""Episodes, their ranges, and their seeds."""

import pickle

import numpy as np
import pytest

from isaaclab_arena.interfaces.episode import (
    MAX_SEED,
    Episode,
    Stream,
    as_ranges,
    conditions_from_json,
    count_episodes,
    cut,
    episode_generator,
    episode_seed,
    episode_seed_sequence,
    of_ranges,
    remaining_episodes,
)

# The seeds and streams of an episode, by reference values: recorded ones must mean the same in every later version.


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


def test_the_name_of_a_job_decides_nothing():
    """Two jobs of one environment and seed meet the same conditions, so that they can be compared in pairs."""
    other = Episode(job="another", episode_index=7, seed=42)
    assert first(other.conditions_generator()) == first(PLAIN.conditions_generator())
    assert (other.episode_seed, other.noise_seed) == (PLAIN.episode_seed, PLAIN.noise_seed)


@pytest.mark.parametrize(
    ("indices", "ranges"),
    [((), ()), ((0,), ((0, 1),)), ((5, 0, 1, 2), ((0, 3), (5, 6))), (range(4), ((0, 4),)), ((3, 3, 4), ((3, 5),))],
)
def test_ranges_hold_the_indices_they_were_made_of(indices, ranges):
    assert as_ranges(indices) == ranges
    assert of_ranges(ranges) == frozenset(indices)
    assert count_episodes(ranges) == len(set(indices))


@pytest.mark.parametrize(
    ("finished", "remaining"),
    [
        ((), ((0, 10),)),
        (((0, 10),), ()),
        (((0, 3), (5, 6)), ((3, 5), (6, 10))),
        (((2, 12),), ((0, 2),)),
        (((10, 20),), ((0, 10),)),
        (((3, 4), (12, 14)), ((0, 3), (4, 10))),
    ],
)
def test_what_remains_is_what_is_planned_and_not_finished(finished, remaining):
    assert remaining_episodes(10, finished) == remaining


def test_parts_are_cut_across_gaps_and_must_add_up():
    assert cut(((0, 3), (5, 7)), [2, 2, 0, 1]) == [((0, 2),), ((2, 3), (5, 6)), (), ((6, 7),)]
    with pytest.raises(ValueError, match=r"3 episodes .* 4"):
        cut(((0, 4),), [1, 2])


def test_known_values_never_change():
    """Recorded seeds must mean the same thing in every later version."""
    state = np.random.SeedSequence(42, spawn_key=(1, 0)).generate_state(4).tolist()
    assert state == [1174127800, 3865592830, 3021419081, 1840909734]
    assert episode_seed_sequence(42, Stream.POLICY, 0).generate_state(4).tolist() == state
    assert [int(stream) for stream in Stream] == [0, 1, 2, 3, 4]
    generator = episode_generator(42, Stream.VARIATION, 7)
    assert generator.random(2).tolist() == [0.9339028322399532, 0.9143114692613291]


def test_an_episode_seed_is_63_bits_of_the_first_two_words_the_first_above():
    """Words of numpy's sequence for 42 and the keys (0, 0), (0, 1), (1, 0): the first is cut, the last is not."""
    assert episode_seed(42, Stream.CONDITIONS, 0) == 3142992634 * 2**32 + 1861194734 - 2**63 == 4275678539605316590
    assert episode_seed(42, Stream.CONDITIONS, 1) == 3908812709 * 2**32 + 3341582407 - 2**63 == 7564850717830971463
    assert episode_seed(42, Stream.POLICY, 0) == 1174127800 * 2**32 + 3865592830 == 5042840506190021630
    assert MAX_SEED == 9223372036854775807


def test_a_part_of_a_stream_is_known_by_the_checksum_of_its_name():
    """The third part of the key is the CRC-32 of the name, 1796889847."""
    words = episode_seed_sequence(42, Stream.VARIATION, 7, "light").generate_state(2).tolist()
    assert words == [2341568157, 2260076175]
    assert episode_seed_sequence(42, Stream.VARIATION, 7, "").spawn_key == (3, 7, 0)


def test_a_file_has_lists_where_environments_have_tuples():
    assert conditions_from_json({"a": [1.0, 2.0], "b": "red", "c": 3}) == {"a": (1.0, 2.0), "b": "red", "c": 3}


EDGES = (0, 1, 2**32 - 1, 2**32, 2**62 + 5, MAX_SEED)


@pytest.mark.parametrize("part", [None, "", "cube.mass"])
@pytest.mark.parametrize("stream", Stream)
def test_streams_that_are_seeded_together_are_those_that_numpy_seeds_one_by_one(stream, part):
    for seed in (*EDGES, 2**127 + 3, 2**130 + 1):
        for index in (*EDGES, 7, 255, 256, 2**31, 2**32 + 256, 2**40 + 3):
            alone = np.random.default_rng(episode_seed_sequence(seed, stream, index, part))
            together = episode_generator(seed, stream, index, part)
            assert together.bit_generator.state == alone.bit_generator.state, (seed, index)


@pytest.mark.parametrize("index", [-1, 2**63])
def test_an_episode_has_a_number_from_0_to_63_bits(index):
    with pytest.raises(ValueError, match="index"):
        episode_generator(0, Stream.POLICY, index)


def test_a_generator_can_be_copied_and_spawn_others_as_numpys_can():
    alone = np.random.default_rng(episode_seed_sequence(3, Stream.POLICY, 5))
    together = pickle.loads(pickle.dumps(episode_generator(3, Stream.POLICY, 5)))
    for first, second in zip(alone.spawn(2) + alone.spawn(1), together.spawn(2) + together.spawn(1), strict=True):
        assert first.random() == second.random()
    assert together.random() == alone.random()
    sequence = together.bit_generator.seed_seq
    assert (sequence.generate_state(3) == episode_seed_sequence(3, Stream.POLICY, 5).generate_state(3)).all()
