"""Blocks of job keys as they stand in the file: the old spellings made new, and one block laid over another."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isaaclab_arena.config.arena.job_keys import in_own_keys
from isaaclab_arena.config.messages import shown
from isaaclab_arena.config.tokens import parse_tokens
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.nested import overlaid


def modernised(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the block with ``policy_args``, token lists and Arena's later keys in today's spelling, and what is wrong.

    Args:
        block: Keys of a job, or of ``defaults``.
    """
    modern = dict(block)
    problems: list[Problem] = []
    if "policy_args" in modern:
        old = modern.pop("policy_args")
        if modern.get("policy_config_dict") is not None and old is not None:
            problems.append(Problem("is the old name of policy_config_dict; give one of them", key="policy_args"))
        elif old is not None:
            modern["policy_config_dict"] = old
    readers = {"arena_env_args": _environment_args, "policy_config_dict": _policy_options}
    for key, read in readers.items():
        if not isinstance(modern.get(key), list):
            continue
        try:
            modern[key] = read(modern[key])
        except ConfigError as error:
            problems += [replace(each, key=f"{key}.{each.key}" if each.key else key) for each in error.problems]
            del modern[key]
    modern, wrong = in_own_keys(modern)
    return modern, problems + wrong


def job_over_defaults(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with the file's defaults under it; a length of its own replaces whichever the defaults give."""
    lengths = {"num_steps", "num_episodes"}
    if any(job.get(key) is not None for key in lengths):
        defaults = {key: value for key, value in defaults.items() if key not in lengths}
    return overlaid(defaults, job, none_removes=True)


def _environment_args(tokens: list[Any]) -> dict[str, Any]:
    positionals, options = parse_tokens(_texts(tokens))
    if len(positionals) > 1:
        raise ConfigError(f"takes one environment, got {' and '.join(map(repr, positionals))}")
    if positionals and "environment" in options:
        raise ConfigError(f"names the environment twice, {positionals[0]!r} and --environment")
    return ({"environment": positionals[0]} if positionals else {}) | options


def _policy_options(tokens: list[Any]) -> dict[str, Any]:
    positionals, options = parse_tokens(_texts(tokens))
    if positionals:
        raise ConfigError(f"{positionals[0]!r} belongs to no option; options are written --name value")
    return options


def _texts(tokens: list[Any]) -> list[str]:
    for token in tokens:
        if not isinstance(token, str):
            raise ConfigError(f"the token {shown(token)} is not a text; put it in quotes")
    return tokens
