from benchmarks.training.processes import Turn
from benchmarks.training.throughput import figures


def turns(*walls: float) -> list[Turn]:
    return [Turn(wall_s=wall, cpu_s=wall, learning_cpu_s=wall / 2, env_steps=100, ranks=()) for wall in walls]


def test_the_ratio_of_two_systems_is_that_of_neighbouring_turns():
    ours = figures(turns(1.0, 10.0), turns(4.0, 40.0))
    assert ours[3:] == ["4.0 (4.0 to 4.0)"] * 3


def test_a_system_has_its_speeds_alone_where_it_is_compared_with_none():
    assert figures(turns(4.0, 40.0), None) == ["14 (2 to 25)", "28 (5 to 50)", "14 (2 to 25)", "", "", ""]
