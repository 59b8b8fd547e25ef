import pytest

from benchmarks.gpu.page import crossover, page


def test_between_two_numbers_of_worlds_it_is_where_the_lines_cross_in_logarithms():
    # The GPU gains tenfold from 10 to 1,000 worlds, and half of that in logarithms is at 100.
    found = crossover([(10, 1.0, 10**0.5), (1000, 10.0, 10**0.5)])
    assert found.worlds == pytest.approx(100)
    assert str(found) == "100"


def test_a_gpu_that_is_always_quicker_crosses_below_what_was_measured():
    assert str(crossover([(4096, 9.0, 1.0), (16, 2.0, 1.0)])) == "below 16"


def test_a_gpu_that_is_not_quicker_crosses_above_what_was_measured():
    assert str(crossover([(16, 0.1, 1.0), (4096, 0.9, 1.0)])) == "above 4,096"


def test_a_gpu_that_is_quicker_only_for_a_while_has_not_crossed():
    assert str(crossover([(16, 2.0, 1.0), (64, 3.0, 1.0), (256, 0.5, 1.0)])) == "above 256"


def test_of_several_crossings_it_is_the_last_that_counts():
    found = crossover([(1, 2.0, 1.0), (10, 0.5, 1.0), (100, 2.0, 1.0)])
    assert found.worlds == pytest.approx(10 * 10**0.5)


def test_equal_speeds_count_as_crossed():
    assert str(crossover([(1, 0.5, 1.0), (64, 1.0, 1.0)])) == "64"


PHYSICS = {
    "task": "reach",
    "worlds": 64,
    "bare": 1000.0,
    "backend": 950.0,
    "environment": 800.0,
    "cpu": 50.0,
    "testspeed": 980.0,
    "bytes_per_world": 2e5,
    "build_s": 3.0,
}
PICTURES = {
    "task": "reach",
    "worlds": 64,
    "size_px": 128,
    "rendered": 5000.0,
    "stepped": 1000.0,
    "cpu": 100.0,
    "bytes_per_world": None,
}
ON_WARP = {
    "episodes": 100,
    "wall_s": 15.0,
    "build_s": 5.0,
    "simulate_s": 6.0,
    "policy_s": 2.0,
    "render_s": 0.0,
    "record_s": 1.0,
}
EPISODES = {"job": "`go1`", "worlds": 50, "warp": ON_WARP, "cpu": {**ON_WARP, "wall_s": 105.0}}
CHECKS = [{"name": "tests", "outcome": "passed", "seconds": 1.0, "last_lines": []}]
RESULT = {
    "gpu": "A GPU",
    "cpu": "a CPU, 16 cores",
    "versions": "torch 2",
    "checks": CHECKS,
    "physics": [PHYSICS],
    "pictures": [PICTURES],
    "episodes": [EPISODES],
}


def physics_page(*changes: dict[str, object]) -> str:
    return page([{**RESULT, "physics": [{**PHYSICS, **change} for change in changes]}])


def test_the_page_shows_each_machine_with_its_tables():
    text = page([RESULT])
    assert "## A GPU\n\na CPU, 16 cores. torch 2.\n\n- passed: tests\n" in text
    assert "| `reach` | 64 | 980 | 1,000 | 950 | 0.95 | 800 | 0.80 | 50 | 200 | 3.0 |" in text
    assert "| `reach` | 128 x 128 | 64 | 5,000 | 1,000 | 100 | 50.00 |  |" in text
    assert "| `go1` | 50 | 100 | MuJoCo-Warp | 10 | 6.67 | 60 % | 20 % | 0 % | 10 % | 10 % | 10.00 | 7.00 |" in text
    assert "| `go1` | 50 | 100 | MuJoCo | 1 | 0.952 | 6 % | 2 % | 0 % | 1 % | 91 % |  |  |" in text


def test_a_part_that_was_not_run_has_no_table():
    text = page([{**RESULT, "pictures": [], "episodes": []}])
    assert "### Physics" in text
    assert "### Pictures" not in text
    assert "### Episodes" not in text


def test_a_check_that_was_ended_says_after_what_time_and_not_what_it_said_last():
    check = {"name": "all tests", "outcome": "out of time", "seconds": 74.6, "last_lines": ["..x."]}
    assert "- out of time: all tests: it was not through after 75 s\n" in page([{**RESULT, "checks": [check]}])


def test_the_page_says_where_nothing_was_measured():
    assert "No machine with a GPU has run it yet" in page([])


def test_goals_are_met_where_every_row_meets_them():
    text = physics_page({}, {"worlds": 512, "backend": 900.0})
    assert "- The backend, of MuJoCo-Warp alone: at least 0.9 is met; the least is 0.90, `reach`, 512 worlds.\n" in text
    assert (
        "- Control steps, of MuJoCo-Warp alone: at least 0.7 is met; the least is 0.80, `reach`, 64 worlds.\n" in text
    )


def test_goals_that_some_rows_miss_say_how_many_and_where_most():
    text = physics_page({"worlds": 1, "backend": 300.0, "environment": 100.0}, {"environment": 699.0})
    assert "at least 0.9 is met in 1 of 2 lines; the least is 0.30, `reach`, 1 world.\n" in text
    assert "at least 0.7 is **not met**; the least is 0.10, `reach`, 1 world.\n" in text


def test_the_goal_against_testspeed_is_told_only_where_it_ran():
    assert "The backend, of `mjwarp-testspeed`: at least 0.9 is met; the least is 0.97" in page([RESULT])
    assert "The backend, of `mjwarp-testspeed`" not in physics_page({"testspeed": None})


def test_each_task_has_its_crossovers():
    text = physics_page({}, {"task": "push_cube", "bare": 100.0, "backend": 10.0, "worlds": 16})
    assert "| `reach` | below 64 | below 64 |" in text
    assert "| `push_cube` | below 16 | above 16 |" in text
