"""Noise and delay of each row for itself, in numbers."""

import numpy as np
import torch

from isaaclab_arena.environments.variations.imperfections import ActionNoise, ObservationDelay
from isaaclab_arena.interfaces.specs import ArraySpec

SPEC = ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5))
ALL = torch.tensor([True, True, True])


def noise_of(strengths: list[float], seeds: list[int]) -> ActionNoise:
    noise = ActionNoise(SPEC, len(strengths))
    for row, (strength, seed) in enumerate(zip(strengths, seeds, strict=True)):
        noise.begin(row, strength, seed)
    return noise


def test_noise_is_a_share_of_each_actions_range_drawn_from_the_episodes_seed():
    noise = noise_of([0.1, 0.0, 0.2], [5, 6, 7])
    first, second = (noise.added(torch.zeros(3, 2), ALL) for _ in range(2))
    streams = {row: np.random.default_rng(seed).standard_normal((2, 2)) for row, seed in ((0, 5), (2, 7))}
    ranges = np.array([4.0, 0.5])
    for step, added in enumerate((first, second)):
        np.testing.assert_allclose(added[0], 0.1 * ranges * streams[0][step], rtol=1e-6)
        np.testing.assert_allclose(added[2], 0.2 * ranges * streams[2][step], rtol=1e-6)
        assert added[1].tolist() == [0.0, 0.0]


def test_a_row_that_rests_draws_nothing():
    resting, busy = noise_of([0.1] * 3, [5, 6, 7]), noise_of([0.1] * 3, [5, 6, 7])
    for _ in range(3):
        added = resting.added(torch.zeros(3, 2), torch.tensor([False, True, True]))
        assert added[0].tolist() == [0.0, 0.0]
    assert torch.equal(resting.added(torch.zeros(3, 2), ALL)[0], busy.added(torch.zeros(3, 2), ALL)[0])


def test_an_episode_has_the_same_noise_in_any_row():
    one, other = noise_of([0.1, 0.3], [5, 9]), noise_of([0.3, 0.1], [9, 5])
    running = torch.tensor([True, True])
    assert torch.equal(one.added(torch.zeros(2, 2), running)[0], other.added(torch.zeros(2, 2), running)[1])


def seen(delay: ObservationDelay, values: list[float], moved: list[int]) -> list[float]:
    observed = {"policy": {"clock": torch.tensor(values)[:, None]}}
    return delay.delayed(observed, moved)["policy"]["clock"][:, 0].tolist()


def test_an_observation_is_as_many_steps_old_as_its_delay_and_first_the_episodes_first():
    delay = ObservationDelay(4)
    for row in range(4):
        delay.begin(row, row)
    rows = [0, 1, 2, 3]
    told = [seen(delay, [float(step)] * 4, rows) for step in range(6)]
    assert [column[0] for column in told] == [0, 1, 2, 3, 4, 5]
    assert [column[1] for column in told] == [0, 0, 1, 2, 3, 4]
    assert [column[2] for column in told] == [0, 0, 0, 1, 2, 3]
    assert [column[3] for column in told] == [0, 0, 0, 0, 1, 2]


def test_neither_the_steps_nor_the_resets_of_neighbours_age_an_observation():
    delay = ObservationDelay(2)
    for row in (0, 1):
        delay.begin(row, 1)
    assert seen(delay, [10.0, 20.0], [0, 1]) == [10.0, 20.0]
    assert seen(delay, [11.0, 21.0], [0]) == [10.0, 20.0]
    assert seen(delay, [12.0, 22.0], [0]) == [11.0, 20.0]
    delay.begin(0, 1)
    assert seen(delay, [0.0, 23.0], [0]) == [0.0, 20.0]
    assert seen(delay, [1.0, 24.0], [0, 1]) == [0.0, 20.0]
    assert seen(delay, [2.0, 25.0], [0, 1]) == [1.0, 24.0]
