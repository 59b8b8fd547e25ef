"""What docs/users/arena.md says of Isaac Lab Arena's flags is what the programs do."""

import dataclasses
import re
import shlex
from functools import cache
from typing import Any

import pytest

from isaaclab_arena.config.arena import ALIASES, REFUSED, FlagsWithoutEffect, is_override
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import EvalOptions
from isaaclab_arena.evaluation.options import read_command_line, refuse_unknown
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block, job_request
from tests.documentation.arena_page import Row, table

FLAGS = table("Flags")
CASES = [(row, program) for row in FLAGS for program in row.programs]


def case_id(value: Row | str) -> str:
    return value.written if isinstance(value, Row) else value


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    (tmp_path / "options.yaml").write_text("speed: 0.5")
    monkeypatch.chdir(tmp_path)


def read(program: str, words: list[str]) -> tuple[Any, JobConfig | None]:
    """Return the options, and for the policy runner the job, that a command line with these words gives."""
    if program == "eval":
        words = words if any("config" in word for word in words) else ["--eval_jobs_config", "other.json", *words]
        options, rest = read_command_line(EvalOptions, words, program="eval")
        refuse_unknown([word for word in rest if not is_override(word)], options)
        options.check()
        return options, None
    before = [] if "--policy_type" in words else ["--policy_type", "scripted"]
    length = {"--num_steps", "--num_episodes", "--list_variations"}
    before += (
        [] if length & {word.replace("-", "_").replace("__", "--", 1) for word in words} else ["--num_episodes", "2"]
    )
    environment = [] if {"--environment", "reach"} & set(words) else ["lift_object"]
    of_environment = "".join(words).startswith("--object")
    words = [*before, *environment, *words] if of_environment else [*before, *words, *environment]
    options, rest = read_command_line(PolicyOptions, words, program="policy")
    options.check()
    [job] = job_request(options, job_block(options, rest)).jobs
    return options, job.config


@cache
def plain(program: str) -> tuple[Any, JobConfig | None]:
    return read(program, [])


def with_hyphens(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


@pytest.mark.parametrize(("row", "program"), CASES, ids=case_id)
def test_a_flag_does_what_the_page_says_with_hyphens_too(row, program):
    words = shlex.split(row.written)
    name = words[0].removeprefix("--").replace("-", "_")
    if row.here == "refused":
        with pytest.raises(ConfigError) as refused:
            read(program, words)
        [problem] = refused.value.problems
        assert (problem.key, problem.message) == (f"--{name}", row.how)
        with pytest.raises(ConfigError, match=re.escape(row.how)):
            read(program, list(map(with_hyphens, words)))
        return
    options, job = read(program, words)
    if "_" in words[0]:
        assert read(program, list(map(with_hyphens, words))) == (options, job)
    if row.here == "taken as":
        assert (options, job) == read(program, shlex.split(row.equal()))
        return
    plain_options, plain_job = plain(program)
    if row.here == "no effect":
        assert (dataclasses.replace(options, **{name: getattr(plain_options, name)}), job) == (plain_options, plain_job)
    else:
        assert row.here == "taken"
        assert (options, job) != (plain_options, plain_job)


def test_the_page_has_every_flag_that_is_known_as_arenas():
    written = {row.written.split()[0].removeprefix("--").replace("-", "_") for row in FLAGS}
    without_effect = {field.name for field in dataclasses.fields(FlagsWithoutEffect)}
    assert {*ALIASES, *REFUSED, *without_effect} <= written
    assert without_effect == {row.written.split()[0].removeprefix("--") for row in FLAGS if row.here == "no effect"}
