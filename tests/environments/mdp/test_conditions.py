import numpy as np

from isaaclab_arena.interfaces.episode import draw_uniform


def test_a_point_of_a_box_is_what_numpy_draws_to_the_last_bit():
    ranges = np.random.default_rng(1)
    for _ in range(500):
        low = tuple(ranges.normal(size=7).tolist())
        high = tuple((np.array(low) + ranges.exponential(size=7)).tolist())
        ours, numpys = np.random.default_rng(5), np.random.default_rng(5)
        assert draw_uniform(ours, low, high) == tuple(numpys.uniform(low, high).tolist())
        assert ours.random() == numpys.random(), "the stream goes on from another place"
