from dataclasses import replace

import pytest

from isaaclab_arena.evaluation.claims import (
    Measured,
    Measurements,
    OpenWork,
    choose,
    expected_s,
    order_of_work,
    slots_to_use,
)


def work(job_index: int, expected_s: float, *, num_ranks: int = 0, environment: str = "table") -> OpenWork:
    return OpenWork(job_index=job_index, expected_s=expected_s, num_ranks=num_ranks, environment_key=environment)


def indices(order) -> list[int]:
    return [each.job_index for each in order]


def test_the_longest_job_comes_first_and_equal_ones_in_order_of_the_file():
    assert indices(order_of_work([work(0, 5.0), work(1, 50.0), work(2, 5.0)])) == [1, 0, 2]


def test_a_job_that_others_work_on_counts_for_what_would_be_left_to_each():
    order = order_of_work([work(0, 100.0, num_ranks=3), work(1, 30.0), work(2, 20.0)])
    assert indices(order) == [1, 0, 2]


def test_in_the_end_long_pieces_come_first_and_before_that_they_do_not():
    long, short = work(0, 400.0, num_ranks=10), work(1, 2000.0, num_ranks=10)
    assert indices(order_of_work([replace(long, piece_s=100.0), replace(short, piece_s=10.0)])) == [0, 1]
    much_left = work(2, 40_000.0, num_ranks=10)
    far_from_the_end = order_of_work([replace(long, piece_s=100.0), replace(short, piece_s=10.0), much_left])
    assert indices(far_from_the_end) == [2, 1, 0]


def test_a_rank_keeps_its_environment_if_that_serves_one_of_the_longer_jobs():
    order = [work(0, 9.0, environment="kitchen"), work(1, 8.0), work(2, 7.0), work(3, 6.0)]
    assert choose(order, "table") == 1
    assert choose(order, "kitchen") == 0
    assert choose(order, "garden") == 0
    assert choose(order, None) == 0


def test_a_short_job_is_not_preferred_though_its_environment_is_built():
    order = [work(0, 9.0), work(1, 8.0), work(2, 1.0, environment="kitchen"), work(3, 1.0, environment="kitchen")]
    assert choose(order, "kitchen") == 0


def test_the_middle_one_of_an_odd_number_of_jobs_is_among_the_longer():
    order = [work(0, 9.0), work(1, 8.0, environment="kitchen"), work(2, 7.0, environment="garden")]
    assert choose(order, "kitchen") == 1
    assert choose(order, "garden") == 0


def test_the_only_job_left_is_chosen():
    assert choose([work(4, 1.0)], None) == 0


def measured(episodes: int, env_steps: int, seconds: float) -> Measured:
    return Measured(episodes=episodes, env_steps=env_steps, seconds=seconds)


def test_before_anything_is_measured_more_episodes_take_longer():
    assert expected_s((), episodes=20) == 20
    assert expected_s((), env_steps=500) == 5


def test_a_job_is_expected_to_go_on_as_it_went():
    measurements = Measurements({0: "a", 1: "a"})
    measurements.add(0, measured(4, 400, 8.0))
    measurements.add(0, measured(1, 100, 7.0))
    assert expected_s(measurements.of(0), episodes=10) == pytest.approx(30.0)


def test_a_job_not_yet_measured_is_expected_to_go_like_its_kind_and_else_like_all():
    measurements = Measurements({0: "a", 1: "a", 2: "b", 3: "c"})
    measurements.add(0, measured(10, 1000, 10.0))
    measurements.add(2, measured(10, 1000, 30.0))
    assert expected_s(measurements.of(1), episodes=5) == pytest.approx(5.0)
    assert expected_s(measurements.of(3), episodes=5) == pytest.approx(10.0)
    assert expected_s(measurements.of(1), env_steps=200) == pytest.approx(2.0)


def test_what_a_job_took_itself_counts_before_what_its_kind_took():
    measurements = Measurements({0: "a", 1: "a", 2: "b"})
    measurements.add(0, measured(10, 1000, 10.0))
    measurements.add(1, measured(10, 1000, 50.0))
    assert [expected_s(measurements.of(job), episodes=10) for job in range(3)] == pytest.approx([10.0, 50.0, 30.0])


def test_work_in_steps_is_timed_by_steps_and_work_in_episodes_by_episodes():
    known = [measured(4, 1000, 20.0)]
    assert expected_s(known, env_steps=50) == pytest.approx(1.0)
    assert expected_s(known, episodes=1) == pytest.approx(5.0)


def test_a_job_of_which_no_episode_ended_is_expected_to_go_like_its_kind():
    measurements = Measurements({0: "a", 1: "a"})
    measurements.add(1, measured(2, 10, 8.0))
    measurements.add(0, measured(0, 0, 4.0))
    assert expected_s(measurements.of(0), episodes=1) == pytest.approx(6.0)


def test_work_of_which_no_episode_ended_says_nothing_of_episodes():
    assert expected_s([measured(0, 50, 5.0)], episodes=7) == 7


def test_work_that_took_no_time_says_nothing():
    assert expected_s([measured(5, 50, 0.0)], episodes=7) == 7


@pytest.mark.parametrize(
    ("num_envs", "open_episodes", "world_size", "unfinished_jobs", "slots"),
    [
        (64, 64, 8, 1, 8),
        (64, 64, 8, 8, 64),
        (64, 64, 8, 40, 64),
        (64, 90, 8, 3, 30),
        (64, 10, 8, 2, 3),
        (64, 10, 9, 2, 2),
        (64, 1, 8, 1, 1),
        (4, 1000, 8, 1, 4),
        (4, 3, 8, 1, 1),
        (4, 0, 8, 0, 1),
    ],
)
def test_a_rank_leaves_room_for_those_that_may_join_it(num_envs, open_episodes, world_size, unfinished_jobs, slots):
    assert (
        slots_to_use(num_envs, open_episodes=open_episodes, world_size=world_size, unfinished_jobs=unfinished_jobs)
        == slots
    )
