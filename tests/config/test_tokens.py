"""Tests of the command-line tokens in old job files."""

import pytest

from isaaclab_arena.config.options import parse_tokens
from isaaclab_arena.errors import ConfigError


@pytest.mark.parametrize(
    ("tokens", "positionals", "options"),
    [
        ("", [], {}),
        (
            "--num_envs 4 lift_object --object cube --enable_cameras",
            ["lift_object"],
            {"num_envs": 4, "object": "cube", "enable_cameras": True},
        ),
        ("--enable-cameras lift --object-set a b c", ["lift"], {"enable_cameras": True, "object_set": ["a", "b", "c"]}),
        ("reach --speed=0.5 --offset -0.1 2", ["reach"], {"speed": 0.5, "offset": [-0.1, 2]}),
        ("reach --fast --slow false", ["reach"], {"fast": True, "slow": False}),
        ("--env_spacing 2.5 reach", ["reach"], {"env_spacing": 2.5}),
        ("reach --path=a=b", ["reach"], {"path": "a=b"}),
        ("reach --speed 1e999 nan", ["reach"], {"speed": ["1e999", "nan"]}),
        ("reach --version 1.2.3 --exponent 1e-3", ["reach"], {"version": "1.2.3", "exponent": 0.001}),
    ],
)
def test_tokens_become_positionals_and_typed_options(tokens, positionals, options):
    assert parse_tokens(tokens.split()) == (positionals, options)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("--object cube --object can", "--object is given twice"),
        ("--num-envs 1 --num_envs 2", "--num_envs is given twice"),
        ("-object cube", "'-object' has one hyphen"),
        ("-- cube", "'--' names no option"),
        ("--num_envs --object cube", "--num_envs needs a value"),
    ],
)
def test_malformed_tokens_are_refused(tokens, message):
    with pytest.raises(ConfigError, match=message):
        parse_tokens(tokens.split())


def test_every_problem_of_the_tokens_is_told():
    with pytest.raises(ConfigError) as refused:
        parse_tokens(["-a", "--b", "1", "--b", "2"])
    assert len(refused.value.problems) == 2
