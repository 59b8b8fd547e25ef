"""Options of environments and policies, names, and latency."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from isaaclab_arena.config.loading import hash_jobs, read_jobs
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.config.schema import (
    JobConfig,
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
    sloppy: str = None  # pyright: ignore[reportAssignmentType] - as third parties write it


def test_json_values_become_what_the_dataclass_declares():
    given = {"path": "p", "scale": 2, "colour": "blue", "offset": [1, 2], "inner": {"depth": 3}, "sloppy": None}
    read = read_options(Options, given, owner="it")
    assert read == Options(path="p", scale=2.0, colour=Colour.BLUE, offset=(1.0, 2.0), inner=Inner(depth=3))
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
    ],
)
def test_a_wrong_option_is_named(given, key, message):
    with pytest.raises(ConfigError) as refused:
        read_options(Options, given, owner="it")
    [problem] = refused.value.problems
    assert problem.key == key
    assert message in problem.message


def test_every_wrong_option_is_told_at_once():
    with pytest.raises(ConfigError) as refused:
        read_options(Options, {"count": "x", "scale": "y", "foo": 1}, owner="it")
    assert {problem.key for problem in refused.value.problems} == {"path", "count", "scale", "foo"}


def test_what_the_dataclass_itself_refuses_is_told():
    with pytest.raises(ConfigError, match="options of it: count must be positive"):
        read_options(Positive, {"count": 0}, owner="it")


def test_a_dataclass_with_annotations_that_cannot_be_read_still_checks_names():
    assert read_options(Unreadable, {"count": 2}, owner="it").count == 2
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        read_options(Unreadable, {"conut": 2}, owner="it")


def test_only_a_dataclass_has_option_names():
    assert option_names(Positive) == {"count"}
    assert option_names(dict) is None


@dataclass(frozen=True)
class Placed:
    directory: Path
    device: str = "cpu"


def test_a_program_may_give_what_no_file_can_hold():
    assert read_options(Placed, {"directory": Path("a")}, owner="it") == Placed(Path("a"))
    with pytest.raises(ConfigError) as refused:
        read_options(Placed, {"directory": "a", "device": Path("cpu")}, owner="it")
    assert [problem.key for problem in refused.value.problems] == ["device"]


@dataclass(frozen=True)
class Numbers:
    number: float = 0.0
    numbers: tuple[float, ...] = ()
    named: dict[str, float] | None = None


@pytest.mark.parametrize(
    "given", [{"number": 10**309}, {"numbers": [1.0, 10**309]}, {"named": {"a": 10**309}}, {"number": -(10**400)}]
)
def test_an_option_that_would_become_infinite_is_refused(given):
    (key,) = given
    with pytest.raises(ConfigError) as caught:
        read_options(Numbers, given, owner="x")
    assert caught.value.problems[0].key == key
    assert "is no finite number" in str(caught.value)


def test_the_largest_number_is_still_one():
    assert read_options(Numbers, {"number": 10**308}, owner="x").number == 1e308


# Tests of which job names are safe.


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        (".", "stands for a directory"),
        ("..", "stands for a directory"),
        ("a/b", "slash"),
        ("/etc/x", "slash"),
        ("../../x", "slash"),
        ("a\\b", "slash"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x1b[31mb", "control character"),
        ("a\u2028b", "line break"),
        ("a\u202eb", "turns text around"),
        ("a\ud800", "surrogate"),
        ("-rf", "begins with '-'"),
        (".hidden", r"begins with '.'"),
        (" a", "space"),
        ("a ", "space"),
        ("a" * 300, "has 300 characters"),
        ("\u5b57" * 75, "has 225 bytes"),
        ("logs", "every run writes"),
        ("Results.CSV", "every run writes"),
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


@pytest.mark.parametrize(
    ("value", "key", "why"),
    [
        ({"steps": -1}, "latency.steps", "must not be negative"),
        ({"ms": -0.5}, "latency.ms", "must not be negative"),
        ({"steps": 1.5}, "latency.steps", "no whole number"),
        ({"steps": True}, "latency.steps", "no whole number"),
        ({"steps": [4, 1]}, "latency.steps", "give the smaller one first"),
        ({"steps": [1, 2, 3]}, "latency.steps", "no two such as"),
        ({"ms": float("nan")}, "latency.ms", "no number"),
        ({"ms": 1e9}, "latency.ms", "at most 600000"),
        ({"steps": 1, "ms": 50}, "latency", "it has steps and ms"),
        ({"meanwhile": "hold"}, "latency", "it has none of them"),
        ({"step": 1}, "latency.step", "did you mean 'steps'?"),
        ({"steps": 1, "meanwhile": "hodl"}, "latency.meanwhile", "did you mean 'hold'?"),
        ({"measured": False, "steps": None}, "latency.measured", "is not true"),
        ({"file": 3}, "latency.file", "is no file name"),
        ("mesured", "latency", "not 'measured'"),
    ],
)
def test_what_cannot_be_a_latency_is_refused_with_its_key(value, key, why):
    fields = {"name": "late", "arena_env_args": {"environment": "reach"}, "policy_type": "zero", "latency": value}
    job, (problem,) = read_job(fields, index=0, label="late", defaults=JobDefaults())
    assert job is not None
    assert job.latency is None
    assert (problem.job, problem.key) == ("late", key)
    assert why in problem.message


@pytest.mark.parametrize(
    ("value", "key", "why"),
    [
        ({"shared": "nod"}, "policy_server.shared", "none of 'node' or 'run'"),
        ({"shared": "run", "max_batches": 4}, "policy_server.max_batches", "did you mean 'max_batch'?"),
        ({"max_batch": 4}, "policy_server.shared", "is missing"),
        ({"shared": "run", "max_batch": 0}, "policy_server.max_batch", "at least 1, got 0"),
        ({"shared": "run", "max_wait_ms": float("nan")}, "policy_server.max_wait_ms", "finite number"),
        ({"shared": "run", "device": ""}, "policy_server.device", "is empty"),
        ("node", "policy_server", "not a mapping"),
    ],
)
def test_what_cannot_be_a_policy_server_is_refused_with_its_key(value, key, why):
    fields = {"name": "served", "arena_env_args": {"environment": "reach"}, "policy_type": "zero"}
    job, (problem,) = read_job({**fields, "policy_server": value}, index=0, label="served", defaults=JobDefaults())
    assert job is not None
    assert job.policy_server is None
    assert problem.key == key
    assert why in problem.message


def test_latency_can_be_swept():
    job = {
        "name": "late",
        "arena_env_args": {"environment": "reach"},
        "policy_type": "zero_action",
        "latency": {"meanwhile": "hold"},
        "sweep": {"latency.steps": [0, 4]},
    }
    jobs = read_jobs({"jobs": [job]}, source="jobs.yaml").jobs
    assert [(each.name, each.latency, each.swept) for each in jobs] == [
        (f"late-steps{steps}", LatencyConfig(steps=(steps, steps)), {"latency.steps": steps}) for steps in (0, 4)
    ]


def test_the_hash_tells_jobs_with_another_latency_apart_and_leaves_others_as_they_were():
    def hash_of(latency: LatencyConfig | None) -> str:
        return hash_jobs((JobConfig(index=0, name="late", environment="reach", policy_type="zero", latency=latency),))

    assert len({hash_of(None), hash_of(LatencyConfig(steps=(1, 1))), hash_of(LatencyConfig(steps=(2, 2)))}) == 3
    assert hash_of(None) == "00713920311338b9"
