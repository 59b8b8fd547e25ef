import pytest

from isaaclab_arena.evaluation.scheduling.selection import (
    ExpectedWork,
    Measured,
    OpenWork,
    WorkSize,
    choose,
    order_of_work,
    rows_to_use,
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


def test_before_anything_is_measured_more_episodes_take_longer():
    expected = ExpectedWork({0: "a", 1: "b", 2: "b"})
    assert expected.seconds(0, WorkSize(episodes=20)) == 20
    assert expected.seconds(1, WorkSize(env_steps=500)) == 5


def test_a_job_is_expected_to_go_on_as_it_went():
    expected = ExpectedWork({0: "a", 1: "a"})
    expected.learn(0, Measured(episodes=4, env_steps=400, seconds=8.0))
    expected.learn(0, Measured(episodes=1, env_steps=100, seconds=7.0))
    assert expected.seconds(0, WorkSize(episodes=10)) == pytest.approx(30.0)


def test_a_job_not_yet_measured_is_expected_to_go_like_its_kind_and_else_like_all():
    expected = ExpectedWork({0: "a", 1: "a", 2: "b", 3: "c"})
    expected.learn(0, Measured(episodes=10, env_steps=1000, seconds=10.0))
    expected.learn(2, Measured(episodes=10, env_steps=1000, seconds=30.0))
    assert expected.seconds(1, WorkSize(episodes=5)) == pytest.approx(5.0)
    assert expected.seconds(3, WorkSize(episodes=5)) == pytest.approx(10.0)
    assert expected.seconds(1, WorkSize(env_steps=200)) == pytest.approx(2.0)


def test_what_a_job_took_itself_counts_before_what_its_kind_took():
    expected = ExpectedWork({0: "a", 1: "a", 2: "b"})
    expected.learn(0, Measured(episodes=10, env_steps=1000, seconds=10.0))
    expected.learn(1, Measured(episodes=10, env_steps=1000, seconds=50.0))
    assert expected.seconds(0, WorkSize(episodes=10)) == pytest.approx(10.0)
    assert expected.seconds(1, WorkSize(episodes=10)) == pytest.approx(50.0)
    assert expected.seconds(2, WorkSize(episodes=10)) == pytest.approx(30.0)


def test_work_in_steps_is_timed_by_steps_and_work_in_episodes_by_episodes():
    expected = ExpectedWork({0: "a"})
    expected.learn(0, Measured(episodes=4, env_steps=1000, seconds=20.0))
    assert expected.seconds(0, WorkSize(env_steps=50)) == pytest.approx(1.0)
    assert expected.seconds(0, WorkSize(episodes=1)) == pytest.approx(5.0)


def test_a_job_of_which_no_episode_ended_is_expected_to_go_like_its_kind():
    expected = ExpectedWork({0: "a", 1: "a"})
    expected.learn(1, Measured(episodes=2, env_steps=10, seconds=8.0))
    expected.learn(0, Measured(episodes=0, env_steps=0, seconds=4.0))
    assert expected.seconds(0, WorkSize(episodes=1)) == pytest.approx(6.0)


def test_work_of_which_no_episode_ended_says_nothing_of_episodes():
    expected = ExpectedWork({0: "a"})
    expected.learn(0, Measured(episodes=0, env_steps=50, seconds=5.0))
    assert expected.seconds(0, WorkSize(episodes=7)) == 7


def test_work_that_took_no_time_says_nothing():
    expected = ExpectedWork({0: "a"})
    expected.learn(0, Measured(episodes=5, env_steps=50, seconds=0.0))
    assert expected.seconds(0, WorkSize(episodes=7)) == 7


@pytest.mark.parametrize(
    ("num_envs", "open_episodes", "world_size", "unfinished_jobs", "rows"),
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
def test_a_rank_leaves_room_for_those_that_may_join_it(num_envs, open_episodes, world_size, unfinished_jobs, rows):
    assert (
        rows_to_use(num_envs, open_episodes=open_episodes, world_size=world_size, unfinished_jobs=unfinished_jobs)
        == rows
    )
