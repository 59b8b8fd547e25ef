"""The one definition of equal conditions."""

import dataclasses

from isaaclab_arena.results.stopping import alike_starts, condition_key, draw_of
from tests.results.evidence import commit_lines


def begun(outcomes: str, *starts: int | None, length: int = 10, total: float = 1.0):
    """Return episodes with their first observations, which went alike as far as their outcomes do."""
    lines = commit_lines(outcomes)
    return [
        dataclasses.replace(line, start=start, episode_length=length, episode_return=total)
        for line, start in zip(lines, starts, strict=True)
    ]


def test_conditions_are_what_was_told_and_a_seed_stands_for_them_where_nothing_was():
    key = condition_key("lift", "cube", '{"cube.x": 0.5}', 7)
    assert key == condition_key("lift", "cube", '{"cube.x": 0.5}', 8)
    assert key not in (
        condition_key("push", "cube", '{"cube.x": 0.5}', 7),
        condition_key("lift", "can", '{"cube.x": 0.5}', 7),
    )
    assert condition_key("lift", None, "{}", 7) != condition_key("lift", None, "{}", 8)


def test_a_seed_is_the_same_draw_in_every_environment_and_a_position_is_not():
    told = '{"gym.seed": 7, "gym.episode_index": 0}'
    assert draw_of(condition_key("gym:a", None, told, 1)) == draw_of(condition_key("gym:b", None, told, 1))
    assert draw_of(condition_key("a", None, "{}", 1)) == draw_of(condition_key("b", None, "{}", 1))
    assert draw_of(condition_key("a", None, '{"x": 1}', 1)) != draw_of(condition_key("b", None, '{"x": 1}', 1))


def test_episodes_that_began_and_went_alike_are_one_whatever_their_seeds():
    assert alike_starts(begun("fff", 5, 5, 6)) == [5, 5, None]
    assert alike_starts(begun("ffss", 5, 5, 6, 6)) == [5, 5, 6, 6]


def test_what_came_after_the_start_makes_them_different():
    """Such as ice on which one slips, or a policy's own noise."""
    assert alike_starts(begun("fsf", 5, 5, 5)) == [None] * 3
    lines = begun("fff", 5, 5, 5)
    lines[2] = dataclasses.replace(lines[2], episode_return=0.5)
    assert alike_starts(lines) == [None] * 3
    lines[2] = dataclasses.replace(lines[0], checksum=3)
    assert alike_starts(lines) == [None] * 3


def test_an_environment_that_tells_its_conditions_needs_no_observation():
    assert alike_starts(commit_lines("ffff")) == [None] * 4
