"""Options of environments and policies, names, and latency."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from isaaclab_arena.config.loading import hash_jobs, read_jobs
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.config.schema import (
    JobDefaults,
    LatencyConfig,
    Meanwhile,
    clashes,
    name_problem,
    read_job,
    read_latency,
)
from isaaclab_arena.errors import ConfigError

# Tests of options checked against the dataclass that declares them.


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    count: int = 1
    callback: "Unknown | None" = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - the point of it


@dataclass(frozen=True)
class Positive:
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("count must be positive")


@dataclass(frozen=True, kw_only=True)
class Options:
    path: str
    count: int = 1
    scale: float = 1.0
    fast: bool = False
    mode: Literal["soft", "hard"] = "soft"
    colour: Colour = Colour.RED
    offset: tuple[float, float] = (0.0, 0.0)
    inner: Inner = Inner()
    numbers: tuple[float, ...] = ()
    named: dict[str, float] | None = None
    directory: Path = Path()
    sloppy: str = None  # pyright: ignore[reportAssignmentType] - as third parties write it


def test_json_values_become_what_the_dataclass_declares_and_a_program_may_give_what_no_file_can_hold():
    given = {"path": "p", "scale": 10**308, "colour": "blue", "offset": [1, 2], "inner": {"depth": 3}, "sloppy": None}
    read = read_options(Options, {**given, "directory": Path("a")}, owner="it")
    wanted = Options(path="p", scale=1e308, colour=Colour.BLUE, offset=(1.0, 2.0), inner=Inner(depth=3))
    assert read == replace(wanted, directory=Path("a"))
    assert isinstance(read.scale, float)


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({}, "path", "is missing; it needs it"),
        ({"path": 3}, "path", "3 is not a text"),
        ({"path": "p", "count": "10"}, "count", '"10" is not a whole number'),
        ({"path": "p", "count": True}, "count", "true is not a whole number"),
        ({"path": "p", "count": 1.5}, "count", "1.5 is not a whole number"),
        ({"path": "p", "count": None}, "count", "null is not a whole number"),
        ({"path": "p", "scale": "fast"}, "scale", '"fast" is not a number'),
        ({"path": "p", "fast": 1}, "fast", "1 is not true or false"),
        ({"path": "p", "mode": "sofft"}, "mode", "\"sofft\" is none of 'soft' or 'hard'"),
        ({"path": "p", "colour": "green"}, "colour", "\"green\" is none of 'red' or 'blue'"),
        ({"path": "p", "offset": 3}, "offset", "3 is not a list"),
        ({"path": "p", "offset": [1, "x"]}, "offset.1", '"x" is not a number'),
        ({"path": "p", "inner": {"depth": "x"}}, "inner.depth", '"x" is not a whole number'),
        ({"path": "p", "coutn": 3}, "coutn", "it has no such option; did you mean 'count'?"),
        ({"path": Path("p")}, "path", "is not a text"),
        ({"path": "p", "scale": -(10**400)}, "scale", "is no finite number"),
        ({"path": "p", "numbers": [1.0, 10**309]}, "numbers", "is no finite number"),
        ({"path": "p", "named": {"a": 10**309}}, "named", "is no finite number"),
    ],
)
def test_a_wrong_option_is_named_with_all_others(given, key, message):
    with pytest.raises(ConfigError) as refused:
        read_options(Options, {**given, "foo": 1}, owner="it")
    problem, foo = sorted(refused.value.problems, key=lambda each: each.key == "foo")
    assert (foo.key, (problem.key or "").startswith(key)) == ("foo", True)
    assert message in problem.message


def test_what_the_dataclass_refuses_is_told_and_one_that_cannot_be_read_still_has_names():
    with pytest.raises(ConfigError, match="count must be positive"):
        read_options(Positive, {"count": 0}, owner="it")
    assert read_options(Unreadable, {"count": 2}, owner="it").count == 2
    with pytest.raises(ConfigError, match="conut"):
        read_options(Unreadable, {"conut": 2}, owner="it")
    assert option_names(dict) is None


# Tests of which job names are safe.


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(("", "is empty"), (".", "stands for a directory"), ("..", "stands for a directory"), ("a\\b", "slash")),
        *(("a/b", "slash"), ("/etc/x", "slash"), ("../../x", "slash"), ("a\0b", "control character")),
        *(("a\nb", "control character"), ("a\x1b[31mb", "control character"), ("a\u2028b", "line break")),
        *(("a\u202eb", "turns text around"), ("a\ud800", "surrogate"), ("-rf", "begins with '-'")),
        *((".hidden", r"begins with '.'"), (" a", "space"), ("a ", "space"), ("a" * 300, "has 300 characters")),
        *(("\u5b57" * 75, "has 225 bytes"), ("logs", "every run writes"), ("Results.CSV", "every run writes")),
    ],
)
def test_an_unsafe_name_is_refused_with_its_reason(name, reason):
    problem = name_problem(name)
    assert problem is not None
    assert reason in problem
    assert problem.isascii()


@pytest.mark.parametrize("name", ["lift", "lift cube 2", "<script>alert(1)<", "=HYPERLINK()", "\u5b57", "a" * 80])
def test_a_strange_but_safe_name_is_accepted(name):
    assert name_problem(name) is None


def test_names_clash_where_a_file_system_takes_them_for_one():
    names = ["lift", "reach", "Lift", "lift", "caf\u00e9", "cafe\u0301"]
    assert clashes(names) == [("Lift", "lift"), ("lift", "lift"), ("cafe\u0301", "caf\u00e9")]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"steps": 2}, LatencyConfig(steps=(2, 2))),
        ({"steps": [1, 4], "meanwhile": "chunk"}, LatencyConfig(steps=(1, 4), meanwhile=Meanwhile.CHUNK)),
        ({"ms": 120}, LatencyConfig(ms=(120.0, 120.0))),
        ({"file": "latencies.csv", "meanwhile": "wait"}, LatencyConfig(file="latencies.csv", meanwhile=Meanwhile.WAIT)),
        ("measured", LatencyConfig(measured=True)),
        ({"measured": True, "meanwhile": "rtc"}, LatencyConfig(measured=True, meanwhile=Meanwhile.RTC)),
        (None, None),
    ],
)
def test_latency_is_given_in_one_of_four_ways(value, read):
    assert read_latency(value) == read


LATENCY, SERVER = "latency", "policy_server"


@pytest.mark.parametrize(
    ("block", "value", "key", "why"),
    [
        (LATENCY, {"steps": -1}, "latency.steps", "must not be negative"),
        (LATENCY, {"ms": -0.5}, "latency.ms", "must not be negative"),
        (LATENCY, {"steps": 1.5}, "latency.steps", "no whole number"),
        (LATENCY, {"steps": True}, "latency.steps", "no whole number"),
        (LATENCY, {"steps": [4, 1]}, "latency.steps", "give the smaller one first"),
        (LATENCY, {"steps": [1, 2, 3]}, "latency.steps", "no two such as"),
        (LATENCY, {"ms": float("nan")}, "latency.ms", "no number"),
        (LATENCY, {"ms": 1e9}, "latency.ms", "at most 600000"),
        (LATENCY, {"steps": 1, "ms": 50}, "latency", "it has steps and ms"),
        (LATENCY, {"meanwhile": "hold"}, "latency", "it has none of them"),
        (LATENCY, {"step": 1}, "latency.step", "did you mean 'steps'?"),
        (LATENCY, {"steps": 1, "meanwhile": "hodl"}, "latency.meanwhile", "did you mean 'hold'?"),
        (LATENCY, {"measured": False, "steps": None}, "latency.measured", "is not true"),
        (LATENCY, {"file": 3}, "latency.file", "is no file name"),
        (LATENCY, "mesured", "latency", "not 'measured'"),
        (SERVER, {"shared": "nod"}, "policy_server.shared", "none of 'node' or 'run'"),
        (SERVER, {"shared": "run", "max_batches": 4}, "policy_server.max_batches", "did you mean 'max_batch'?"),
        (SERVER, {"max_batch": 4}, "policy_server.shared", "is missing"),
        (SERVER, {"shared": "run", "max_batch": 0}, "policy_server.max_batch", "at least 1, got 0"),
        (SERVER, {"shared": "run", "max_wait_ms": float("nan")}, "policy_server.max_wait_ms", "finite number"),
        (SERVER, {"shared": "run", "device": ""}, "policy_server.device", "is empty"),
        (SERVER, "node", "policy_server", "not a mapping"),
    ],
)
def test_what_cannot_be_a_latency_or_a_policy_server_is_refused_with_its_key(block, value, key, why):
    fields = {"name": "late", "arena_env_args": {"environment": "reach"}, "policy_type": "zero", block: value}
    job, (problem,) = read_job(fields, index=0, label="late", defaults=JobDefaults())
    assert job is not None
    assert getattr(job, block) is None
    assert (problem.job, problem.key) == ("late", key)
    assert why in problem.message


def test_the_hash_tells_jobs_with_another_latency_apart_and_leaves_others_as_they_were():
    late = {"name": "late", "arena_env_args": {"environment": "reach"}, "policy_type": "zero"}
    swept = {**late, "latency": {"meanwhile": "hold"}, "sweep": {"latency.steps": [0, 4]}}
    jobs = read_jobs({"jobs": [late, {**swept, "name": "swept"}]}, source="jobs.yaml").jobs
    assert [(job.name, job.latency) for job in jobs[1:]] == [
        (f"swept-steps{steps}", LatencyConfig(steps=(steps, steps))) for steps in (0, 4)
    ]
    hashes = [hash_jobs((replace(job, index=0, name="late", chooses_num_envs=False),)) for job in jobs]
    assert len(set(hashes)) == 3
    assert hashes[0] == "00713920311338b9"
