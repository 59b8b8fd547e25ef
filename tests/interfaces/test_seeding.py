import pickle

import numpy as np
import pytest

from isaaclab_arena.interfaces.episode import MAX_SEED, Stream, episode_generator, episode_seed, episode_seed_sequence


def test_a_stream_is_numpys_seed_sequence_with_use_and_episode_as_spawn_key():
    expected = np.random.SeedSequence(entropy=42, spawn_key=(int(Stream.POLICY), 7)).generate_state(4)
    assert (episode_seed_sequence(42, Stream.POLICY, 7).generate_state(4) == expected).all()


def test_known_values_never_change():
    """Recorded seeds must mean the same thing in every later version."""
    state = np.random.SeedSequence(42, spawn_key=(1, 0)).generate_state(4).tolist()
    assert state == [1174127800, 3865592830, 3021419081, 1840909734]
    assert episode_seed_sequence(42, Stream.POLICY, 0).generate_state(4).tolist() == state
    assert [int(stream) for stream in Stream] == [0, 1, 2, 3, 4]


def test_an_episode_seed_is_63_bits_of_the_first_two_words_the_first_above():
    """Words of numpy's sequence for 42 and the keys (0, 0), (0, 1), (1, 0): the first is cut, the last is not."""
    assert episode_seed(42, Stream.CONDITIONS, 0) == 3142992634 * 2**32 + 1861194734 - 2**63 == 4275678539605316590
    assert episode_seed(42, Stream.CONDITIONS, 1) == 3908812709 * 2**32 + 3341582407 - 2**63 == 7564850717830971463
    assert episode_seed(42, Stream.POLICY, 0) == 1174127800 * 2**32 + 3865592830 == 5042840506190021630
    assert MAX_SEED == 9223372036854775807


def test_a_stream_draws_known_numbers_in_double_precision():
    generator = episode_generator(42, Stream.VARIATION, 7)
    assert generator.random(2).tolist() == [0.9339028322399532, 0.9143114692613291]


def test_a_part_of_a_stream_is_known_by_the_checksum_of_its_name():
    """The third part of the key is the CRC-32 of the name, 1796889847."""
    words = episode_seed_sequence(42, Stream.VARIATION, 7, "light").generate_state(2).tolist()
    assert words == [2341568157, 2260076175]
    assert episode_seed_sequence(42, Stream.VARIATION, 7, "").spawn_key == (3, 7, 0)


def test_streams_differ_by_seed_use_and_episode():
    draws = {
        episode_generator(seed, stream, episode).integers(2**62)
        for seed in (0, 1)
        for stream in Stream
        for episode in range(50)
    }
    assert len(draws) == 2 * len(Stream) * 50


def test_every_bit_of_a_seed_counts():
    draws = {episode_generator(seed, Stream.CONDITIONS, 0).integers(2**62) for seed in (1, 1 + 2**32, 1 + 2**62)}
    assert len(draws) == 3


def test_a_stream_starts_over_each_time_it_is_asked_for():
    first = episode_generator(3, Stream.CONDITIONS, 5).random(3)
    again = episode_generator(3, Stream.CONDITIONS, 5).random(3)
    assert (first == again).all()


def test_a_hundred_thousand_episode_seeds_do_not_collide():
    seeds = {episode_seed(0, Stream.CONDITIONS, episode) for episode in range(100_000)}
    assert len(seeds) == 100_000
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


EDGES = (0, 1, 2**32 - 1, 2**32, 2**62 + 5, MAX_SEED)


@pytest.mark.parametrize("part", [None, "", "cube.mass", "light"])
@pytest.mark.parametrize("stream", Stream)
def test_streams_that_are_seeded_together_are_those_that_numpy_seeds_one_by_one(stream, part):
    for seed in (*EDGES, 2**127 + 3, 2**130 + 1):
        for index in (*EDGES, 7, 255, 256, 2**31, 2**32 + 256, 2**40 + 3):
            alone = np.random.default_rng(episode_seed_sequence(seed, stream, index, part))
            together = episode_generator(seed, stream, index, part)
            assert together.bit_generator.state == alone.bit_generator.state, (seed, index)


def test_an_episode_has_a_number_from_0_to_63_bits():
    for index in (-1, 2**63):
        with pytest.raises(ValueError, match="index must be 0 to"):
            episode_generator(0, Stream.POLICY, index)


def test_a_generator_can_be_copied_and_spawn_others_as_numpys_can():
    alone = np.random.default_rng(episode_seed_sequence(3, Stream.POLICY, 5))
    together = pickle.loads(pickle.dumps(episode_generator(3, Stream.POLICY, 5)))
    for first, second in zip(alone.spawn(2) + alone.spawn(1), together.spawn(2) + together.spawn(1), strict=True):
        assert first.random() == second.random()
    assert together.random() == alone.random()
    sequence = together.bit_generator.seed_seq
    assert (sequence.generate_state(3) == episode_seed_sequence(3, Stream.POLICY, 5).generate_state(3)).all()
