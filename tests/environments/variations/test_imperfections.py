"""Noise and delay of each env slot for itself, in numbers."""

import numpy as np
import torch

from isaaclab_arena.environments.variations.varied_world import NOISE_STEPS, ActionNoise, ObservationDelay
from isaaclab_arena.interfaces.specs import ArraySpec

CPU = torch.device("cpu")
SPEC = ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5))
ALL = torch.tensor([True, True, True])
MAX_STEPS = 2 * NOISE_STEPS + 3


def noise_of(strengths: list[float], seeds: list[int]) -> ActionNoise:
    noise = ActionNoise(SPEC, len(strengths), device=CPU)
    noise.begin(range(len(strengths)), strengths, seeds)
    return noise


def test_noise_is_a_share_of_each_actions_range_drawn_from_the_episodes_seed():
    noise = noise_of([0.1, 0.0, 0.2], [5, 6, 7])
    first, second = (noise.added(torch.zeros(3, 2), ALL) for _ in range(2))
    streams = {slot: np.random.default_rng(seed).standard_normal((2, 2)) for slot, seed in ((0, 5), (2, 7))}
    ranges = np.array([4.0, 0.5])
    for step, added in enumerate((first, second)):
        np.testing.assert_allclose(added[0], 0.1 * ranges * streams[0][step], rtol=1e-6)
        np.testing.assert_allclose(added[2], 0.2 * ranges * streams[2][step], rtol=1e-6)
        assert added[1].tolist() == [0.0, 0.0]


def test_noise_has_the_bits_of_draws_that_are_made_step_by_step():
    noise, stream = noise_of([0.3], [11]), np.random.default_rng(11)
    for step in range(MAX_STEPS):
        action = torch.full((1, 2), 0.7 * step)
        drawn = stream.standard_normal(2) * np.array([4.0, 0.5]) * 0.3
        assert torch.equal(noise.added(action, torch.tensor([True]))[0], action[0] + torch.from_numpy(drawn).float())


def test_an_action_without_noise_keeps_its_bits_beside_others_that_have_some():
    noise = noise_of([0.1, 0.0], [5, 6])
    added = noise.added(torch.full((2, 2), -0.0), torch.tensor([True, True]))
    assert torch.signbit(added[1]).all()


def test_an_env_slot_that_rests_draws_nothing():
    resting, busy = noise_of([0.1] * 3, [5, 6, 7]), noise_of([0.1] * 3, [5, 6, 7])
    for _ in range(3):
        added = resting.added(torch.zeros(3, 2), torch.tensor([False, True, True]))
        assert added[0].tolist() == [0.0, 0.0]
    assert torch.equal(resting.added(torch.zeros(3, 2), ALL)[0], busy.added(torch.zeros(3, 2), ALL)[0])


def test_an_env_slot_goes_on_with_its_noise_however_long_others_run_and_whenever_they_begin():
    noise, alone = noise_of([0.1, 0.2], [5, 6]), noise_of([0.1], [5])
    for step in range(MAX_STEPS):
        if step in (7, NOISE_STEPS + 7):
            noise.begin([1], [0.3], [step])
        rests = step % 5 == 3
        added = noise.added(torch.zeros(2, 2), torch.tensor([not rests, True]))
        if not rests:
            assert torch.equal(added[0], alone.added(torch.zeros(1, 2), torch.tensor([True]))[0])


def test_an_episode_has_the_same_noise_in_any_env_slot():
    one, other = noise_of([0.1, 0.3], [5, 9]), noise_of([0.3, 0.1], [9, 5])
    running = torch.tensor([True, True])
    assert torch.equal(one.added(torch.zeros(2, 2), running)[0], other.added(torch.zeros(2, 2), running)[1])


def test_the_next_episode_begins_with_the_first_of_its_own_noise():
    noise, fresh = noise_of([0.1, 0.3], [5, 9]), noise_of([0.2, 0.3], [8, 9])
    running = torch.tensor([True, True])
    noise.added(torch.zeros(2, 2), running)
    noise.begin([0], [0.2], [8])
    assert torch.equal(noise.added(torch.zeros(2, 2), running)[0], fresh.added(torch.zeros(2, 2), running)[0])
    noise.begin([0], [0.0], [8])
    assert noise.added(torch.zeros(2, 2), running)[0].tolist() == [0.0, 0.0]


def delay_of(*delays: int) -> ObservationDelay:
    delay = ObservationDelay(len(delays), CPU)
    delay.begin(torch.arange(len(delays)), delays)
    return delay


def seen(delay: ObservationDelay, values: list[float], moved: list[int]) -> list[float]:
    observed = {"policy": {"clock": torch.tensor(values)[:, None]}}
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[moved] = True
    return delay.delayed(observed, mask)["policy"]["clock"][:, 0].tolist()


def test_an_observation_is_as_many_steps_old_as_its_delay_and_first_the_episodes_first():
    delay = delay_of(0, 1, 2, 3)
    told = [seen(delay, [float(step)] * 4, [0, 1, 2, 3]) for step in range(6)]
    assert [column[0] for column in told] == [0, 1, 2, 3, 4, 5]
    assert [column[1] for column in told] == [0, 0, 1, 2, 3, 4]
    assert [column[2] for column in told] == [0, 0, 0, 1, 2, 3]
    assert [column[3] for column in told] == [0, 0, 0, 0, 1, 2]


def test_neither_the_steps_nor_the_resets_of_neighbours_age_an_observation():
    delay = delay_of(1, 1)
    assert seen(delay, [10.0, 20.0], [0, 1]) == [10.0, 20.0]
    assert seen(delay, [11.0, 21.0], [0]) == [10.0, 20.0]
    assert seen(delay, [12.0, 22.0], [0]) == [11.0, 20.0]
    delay.begin(torch.tensor([0]), [1])
    assert seen(delay, [0.0, 23.0], [0]) == [0.0, 20.0]
    assert seen(delay, [1.0, 24.0], [0, 1]) == [0.0, 20.0]
    assert seen(delay, [2.0, 25.0], [0, 1]) == [1.0, 24.0]


def test_an_episode_with_a_longer_delay_leaves_what_the_others_remember():
    delay = delay_of(0, 1, 2)
    for step in range(5):
        seen(delay, [step, 10.0 + step, 20.0 + step], [0, 1, 2])
    delay.begin(torch.tensor([0]), [4])
    assert seen(delay, [0.0, 14.0, 24.0], [0]) == [0.0, 13.0, 22.0]
    told = [seen(delay, [step, 10.0 + step, 20.0 + step], [0, 1, 2]) for step in range(5, 10)]
    assert [column[0] for column in told] == [0, 0, 0, 0, 5]
    assert [column[1] for column in told] == [14, 15, 16, 17, 18]
    assert [column[2] for column in told] == [23, 24, 25, 26, 27]


def test_without_a_delay_an_observation_is_handed_on_untouched():
    observed = {"policy": {"clock": torch.zeros(2, 1)}}
    assert delay_of(0, 0).delayed(observed, torch.tensor([True, True])) is observed
