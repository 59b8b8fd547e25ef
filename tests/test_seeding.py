import numpy as np

from isaaclab_arena.seeding import MAX_SEED, Stream, episode_generator, episode_seed, episode_seed_sequence


def test_a_stream_is_numpys_seed_sequence_with_use_and_episode_as_spawn_key():
    expected = np.random.SeedSequence(entropy=42, spawn_key=(int(Stream.POLICY), 7)).generate_state(4)
    assert (episode_seed_sequence(42, Stream.POLICY, 7).generate_state(4) == expected).all()


def test_known_values_never_change():
    """Recorded seeds must mean the same thing in every later version."""
    state = np.random.SeedSequence(42, spawn_key=(1, 0)).generate_state(4).tolist()
    assert state == [1174127800, 3865592830, 3021419081, 1840909734]
    assert episode_seed_sequence(42, Stream.POLICY, 0).generate_state(4).tolist() == state
    assert [int(stream) for stream in Stream] == [0, 1, 2, 3]


def test_streams_differ_by_seed_use_and_episode():
    draws = {
        episode_generator(seed, stream, episode).integers(2**62)
        for seed in (0, 1)
        for stream in Stream
        for episode in range(50)
    }
    assert len(draws) == 2 * len(Stream) * 50


def test_a_stream_starts_over_each_time_it_is_asked_for():
    first = episode_generator(3, Stream.CONDITIONS, 5).random(3)
    again = episode_generator(3, Stream.CONDITIONS, 5).random(3)
    assert (first == again).all()


def test_a_hundred_thousand_episode_seeds_do_not_collide():
    seeds = {episode_seed(0, Stream.CONDITIONS, episode) for episode in range(100_000)}
    assert len(seeds) == 100_000
    assert all(0 <= seed <= MAX_SEED for seed in seeds)
