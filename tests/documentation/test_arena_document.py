"""What docs/users/arena.md says of Isaac Lab Arena's flags and keys is what the programs do."""

import dataclasses
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from isaaclab_arena import ConfigError
from isaaclab_arena.config.arena.flags import ALIASES, REFUSED, FlagsWithoutEffect
from isaaclab_arena.config.arena.job_keys import ARENA_JOB_KEYS, BUILDER_KEYS
from isaaclab_arena.config.job_blocks import overlaid
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.evaluation.eval_runner import EvalOptions
from isaaclab_arena.evaluation.options import read_command_line, refuse_unknown, split_overrides
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, resolved_job
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

PAGE = (ROOT / "docs" / "users" / "arena.md").read_text()
JOB = {
    "name": "lift",
    "arena_env_args": {"environment": "lift_object"},
    "policy_type": "scripted",
    "num_episodes": 2,
}


@dataclass(frozen=True)
class Row:
    """One line of a table: what is written, of which programs, what becomes of it, and how."""

    written: str
    programs: tuple[str, ...]
    here: str
    how: str

    def equal(self) -> str:
        match = re.match(r"`([^`]+)`", self.how)
        assert match is not None, f"{self.written} names nothing that it is taken as"
        return match[1]


def table(heading: str) -> list[Row]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"
    ]
    both = {"both": ("eval", "policy")}
    return [
        Row(cells[0].strip("`"), both.get(cells[1], (cells[1],)) if len(cells) > 3 else (), *cells[-2:])
        for cells in lines
    ]


FLAGS, KEYS = table("Flags"), table("Keys")
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
        refuse_unknown(split_overrides(rest)[1], options)
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
    [job] = resolved_job(options, rest)[1]
    return options, job.config


def with_hyphens(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


@pytest.mark.parametrize(("row", "program"), CASES, ids=case_id)
def test_a_flag_does_what_the_page_says(row, program):
    words = shlex.split(row.written)
    name = words[0].removeprefix("--").replace("-", "_")
    if row.here == "refused":
        with pytest.raises(ConfigError) as refused:
            read(program, words)
        [problem] = refused.value.problems
        assert (problem.key, problem.message) == (f"--{name}", row.how)
        return
    options, job = read(program, words)
    plain_options, plain_job = read(program, [])
    if row.here == "taken as":
        assert (options, job) == read(program, shlex.split(row.equal()))
    elif row.here == "no effect":
        assert (dataclasses.replace(options, **{name: getattr(plain_options, name)}), job) == (plain_options, plain_job)
    else:
        assert row.here == "taken"
        assert (options, job) != (plain_options, plain_job)


@pytest.mark.parametrize(("row", "program"), [case for case in CASES if "_" in case[0].written.split()[0]], ids=case_id)
def test_a_flag_may_be_written_with_hyphens(row, program):
    words = shlex.split(row.written)
    if row.here == "refused":
        with pytest.raises(ConfigError, match=re.escape(row.how)):
            read(program, list(map(with_hyphens, words)))
    else:
        assert read(program, list(map(with_hyphens, words))) == read(program, words)


def test_the_page_has_every_flag_that_is_known_as_arenas():
    written = {row.written.split()[0].removeprefix("--").replace("-", "_") for row in FLAGS}
    without_effect = {field.name for field in dataclasses.fields(FlagsWithoutEffect)}
    assert {*ALIASES, *REFUSED, *without_effect} <= written
    assert without_effect == {row.written.split()[0].removeprefix("--") for row in FLAGS if row.here == "no effect"}


def job_of(written: str) -> JobConfig:
    block = yaml.safe_load(written)
    replaced = {"environment": "arena_env_args", "policy": "policy_type", "rollout_limit": "num_episodes"}
    replaced["num_steps"] = "num_episodes"
    base = {key: value for key, value in JOB.items() if key not in {replaced.get(given) for given in block}}
    [job] = resolve_jobs(read_jobs({"jobs": [overlaid(base, block)]}, source="jobs.yaml").jobs)
    return job.config


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.written)
def test_a_key_does_what_the_page_says(row):
    if row.here == "refused":
        with pytest.raises(ConfigError) as refused:
            job_of(row.written)
        [problem] = refused.value.problems
        [(outer, inner)] = yaml.safe_load(row.written).items()
        assert (problem.job, problem.key, problem.message) == ("lift", f"{outer}.{next(iter(inner))}", row.how)
    elif row.here == "taken as":
        assert job_of(row.written) == job_of(row.equal()) != job_of("{}")
    elif row.here == "no effect":
        assert job_of(row.written) == job_of("{}")
    else:
        assert row.here == "taken"
        assert job_of(row.written) != job_of("{}")


def test_the_page_has_every_key_that_is_known_as_arenas():
    written = [yaml.safe_load(row.written) for row in KEYS]
    assert {key for block in written for key in block} >= ARENA_JOB_KEYS
    assert {key for block in written for key in block.get("environment_builder", {})} == BUILDER_KEYS


def test_the_experiment_of_the_page_is_the_job_file_beside_it():
    experiment, jobs = (yaml.safe_load(body) for body in blocks(PAGE, "yaml"))
    as_jobs = resolve_jobs(read_jobs(experiment, source="experiment.yaml").jobs)
    assert [job.config for job in as_jobs] == list(read_jobs(jobs, source="jobs.yaml").jobs)
