"""The limits of the fields of a job, in numbers: one below is let in, one above is not."""

import json
from collections.abc import Callable

import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.mistakes import GOOD, mistaken


@pytest.fixture
def problems(tmp_path, capsys) -> Callable[[dict], dict[str | None, str]]:
    """Return what `validate` finds in a file, by key."""

    def problems(document: dict) -> dict[str | None, str]:
        (tmp_path / "jobs.json").write_text(json.dumps(document))
        code = main(["validate", "--json", str(tmp_path / "jobs.json")])
        found = json.loads(capsys.readouterr().out)["problems"]
        assert code == (2 if found else 0)
        return {problem["key"]: problem["message"] for problem in found}

    return problems


@pytest.fixture
def of_field(problems) -> Callable[[str, object], str | None]:
    """Return what is wrong with one field of a job that is good otherwise, None where nothing is."""
    return lambda key, value: problems(mistaken(**{key: value})).get(key)


COUNTS = {"num_episodes": 10_000_000, "num_steps": 10_000_000}


@pytest.mark.parametrize(("key", "most"), COUNTS.items())
def test_counts_of_a_job_go_from_one_to_ten_million(problems, key, most):
    other = {"num_steps": "num_episodes", "num_episodes": "num_steps"}[key]
    for value, is_right in ((0, False), (1, True), (most, True), (most + 1, False)):
        assert (key not in problems(mistaken(**{other: ..., key: value}))) == is_right
    assert problems(mistaken(**{other: ..., key: most + 1}))[key] == "must be at most 10000000, got 10000001"


@pytest.mark.parametrize(
    ("key", "least", "most"), [("num_envs", 1, 1_000_000), ("placement_seed", 0, 9_223_372_036_854_775_807)]
)
def test_numbers_of_an_environment_have_limits(problems, key, least, most):
    for value, is_right in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
        found = problems(mistaken(arena_env_args={"environment": "reach", key: value}))
        assert (f"arena_env_args.{key}" not in found) == is_right


def test_a_seed_has_sixty_three_bits(of_field):
    for value, is_right in ((-1, False), (0, True), (2**63 - 1, True), (2**63, False)):
        assert (of_field("seed", value) is None) == is_right


@pytest.mark.parametrize("key", ["timeout_s", "episode_timeout_s"])
def test_time_limits_are_above_zero_and_at_most_three_years(of_field, key):
    for value, is_right in ((0, False), (-1, False), (1e-9, True), (100_000_000, True), (100_000_001, False)):
        assert (of_field(key, value) is None) == is_right


def test_a_job_is_rebuilt_at_most_as_often_as_it_has_episodes(problems):
    assert problems(mistaken(num_episodes=5, num_rebuilds=5)) == {}
    assert "num_rebuilds" in problems(mistaken(num_episodes=5, num_rebuilds=6))
    assert "num_rebuilds" in problems(mistaken(num_episodes=5, num_rebuilds=0))


def test_a_name_has_at_most_eighty_characters_and_two_hundred_bytes(of_field):
    for name, is_right in (("a" * 80, True), ("a" * 81, False), ("\u5b57" * 66 + "aa", True), ("\u5b57" * 67, False)):
        assert (of_field("name", name) is None) == is_right


def test_a_file_has_at_most_a_hundred_thousand_jobs(problems):
    def of(num_seeds: int) -> dict[str | None, str]:
        sweep = {
            "seed": list(range(10)),
            "num_episodes": list(range(1, 11)),
            "policy_config_dict.a": list(range(num_seeds)),
        }
        return problems({"jobs": [{**GOOD, "sweep": sweep}, {**GOOD, "name": 3}]})

    assert of(1001)["sweep"] == "makes 100100 jobs; a file may have 100000 in all"


WRONG_TYPES = {
    "name": (3, None, True, [], {}),
    "arena_env_args": (3, None, True, "reach", 0.5),
    "policy_type": (3, None, True, [], {}, ""),
    "policy_config_dict": (3, True, "x", 0.5),
    "num_episodes": ("1", 1.0, 1.5, True, [], {}),
    "num_steps": ("1", 1.0, 1.5, True, [], {}),
    "num_rebuilds": ("1", 1.0, True, [], {}),
    "language_instruction": (3, True, [], {}, ""),
    "variations": (3, True, "x", []),
    "conditions": (3, True, [], {}, ""),
    "seed": ("1", 1.0, True, [], {}),
    "timeout_s": ("1", True, [], {}),
    "episode_timeout_s": ("1", True, [], {}),
    "status": (3, True, [], {}, "", "done"),
    "sweep": (3, True, "x", []),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_TYPES.items() for value in values])
def test_a_field_of_another_type_is_told_with_its_key(problems, key, value):
    found = problems(mistaken(**({"num_episodes": ..., key: value} if key == "num_steps" else {key: value})))
    assert any((where or "").partition(".")[0] == key for where in found)


@pytest.mark.parametrize("key", ["num_envs", "enable_cameras", "placement_seed", "env_spacing", "environment"])
@pytest.mark.parametrize("value", ["1", [], {}])
def test_a_field_of_the_environment_of_another_type_is_told_with_its_key(problems, key, value):
    if key == "environment" and value == "1":
        value = 1
    assert f"arena_env_args.{key}" in problems(mistaken(arena_env_args={"environment": "reach", key: value}))
