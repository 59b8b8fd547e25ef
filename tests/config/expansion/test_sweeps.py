"""Tests of sweeps."""

import pytest

from isaaclab_arena.config.expansion.suites import expand, sweep_problems

KEYS = frozenset({"name", "seed", "policy_type", "arena_env_args", "policy_config_dict", "sweep"})


def names(name: str, sweep: dict) -> list[str]:
    return [job["name"] for job in expand({"name": name}, sweep)]


def test_the_last_key_changes_fastest():
    sweep = {"seed": [0, 1], "arena_env_args.object": ["cube", "can"]}

    jobs = list(expand({"name": "lift", "arena_env_args": {"environment": "lift_object"}}, sweep))

    assert [job["name"] for job in jobs] == ["lift-seed0-cube", "lift-seed0-can", "lift-seed1-cube", "lift-seed1-can"]
    assert jobs[3] == {
        "name": "lift-seed1-can",
        "seed": 1,
        "arena_env_args": {"environment": "lift_object", "object": "can"},
    }


def test_without_a_sweep_the_job_stays_as_it_is():
    assert names("lift", {}) == ["lift"]
    assert names("lift-{seed}", {}) == ["lift-{seed}"]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"policy_type": ["my_package.policies.Mine", "zero_action"]}, ["a-Mine", "a-zero_action"]),
        ({"policy_type": ["one.Mine", "two.Mine"]}, ["a-policy_type0", "a-policy_type1"]),
        ({"policy_config_dict.path": ["runs/a b.pt", "runs/c.pt"]}, ["a-runs_a_b.pt", "a-runs_c.pt"]),
        ({"policy_config_dict.scale": [0.5, -1]}, ["a-scale0.5", "a-scale-1"]),
        ({"policy_config_dict.fast": [True, None]}, ["a-fasttrue", "a-fastnone"]),
        ({"policy_config_dict": [{"x": 1}, {"x": 2}]}, ["a-policy_config_dict0", "a-policy_config_dict1"]),
    ],
)
def test_a_name_says_what_was_swept(sweep, expected):
    assert names("a", sweep) == expected


def test_a_placeholder_takes_the_value_and_the_rest_is_appended():
    sweep = {"seed": [3], "arena_env_args.object": ["cube"]}

    assert names("lift-{object}", sweep) == ["lift-cube-seed3"]
    assert names("{arena_env_args.object}-{seed}", sweep) == ["cube-3"]


@pytest.mark.parametrize(
    ("job", "sweep", "message"),
    [
        ({}, {"seeds": [1]}, "did you mean 'seed'"),
        ({}, {"name": ["a"]}, "'name' is no key that can be swept"),
        ({}, {"sweep.seed": [1]}, "'sweep' is no key that can be swept"),
        ({}, {"seed": []}, "at least one value"),
        ({}, {"seed": 3}, "at least one value"),
        ({"arena_env_args": "x"}, {"arena_env_args.object": ["cube"]}, "is no mapping"),
        ({"name": "a-{sed}"}, {"seed": [1]}, "'{sed}' is no swept key; did you mean 'seed'"),
    ],
)
def test_a_sweep_that_cannot_be_expanded_is_refused(job, sweep, message):
    [found] = sweep_problems(job, sweep, KEYS)

    assert message in found.message
