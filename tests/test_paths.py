"""Paths that users give."""

import dataclasses
import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tyro

import isaaclab_arena as arena
from isaaclab_arena.api.evaluating import JobFileKeywords, JobKeywords
from isaaclab_arena.cli import main as cli
from isaaclab_arena.cli.main import COMMANDS, commands_of_others
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import option_types, read_options
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.robots.embodiment import read_description
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena.paths import expanded, given_path, make_dated_directory, not_a_plain_file, typed_words
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.sim.scene import ASSETS
from isaaclab_arena.training import train
from isaaclab_arena_gr00t import convert
from isaaclab_arena_gr00t.serving import serve
from isaaclab_arena_gr00t.training import finetune
from tests.end_to_end.launching import write_jobs

# The rule for paths that people give, and every option, key and argument that takes one.


ROOT = Path(__file__).parents[1]
PROGRAMS: dict[str, Callable[[list[str]], Any]] = {
    **{name: lambda words, name=name: cli.main([name, *words]) for name in COMMANDS},
    **{name: lambda words, name=name: cli.main([name, *words]) for name, _ in commands_of_others()},
    "eval_runner": eval_runner.main,
    "policy_runner": policy_runner.main,
    "train.py": train.main,
    "finetune.py": finetune.main,
    "serve.py": serve.main,
    "convert to_lerobot": lambda words: convert.main(["to_lerobot", *words]),
    "convert from_lerobot": lambda words: convert.main(["from_lerobot", *words]),
}
NEEDED = {
    "plan": ["--difference", "0.1"],
    "list": ["environments"],
    "completion": ["bash"],
    "new": ["policy"],
    "serve": ["--protocol", "openpi"],
    "serve.py": ["--protocol", "openpi"],
    "collect": ["--num_episodes", "1"],
}
"""What a program cannot be read without, besides texts and paths."""

CARTPOLE = {"arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action", "num_episodes": 2}


class Read(Exception):  # noqa: N818  nothing is wrong
    """Ends a program once it has read its command line."""


@pytest.fixture
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NOBODY", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts_of(value: Any) -> list[str]:
    """Return every text and path in what has been read."""
    if isinstance(value, str | Path):
        return [str(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [text for field in dataclasses.fields(value) for text in texts_of(getattr(value, field.name))]
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in texts_of(each)]
    return [text for each in value for text in texts_of(each)] if isinstance(value, list | tuple) else []


def takes_text(hint: Any) -> bool:
    """Whether an option of this type takes any text, or any path."""
    if hint in {str, Path}:
        return True
    if typing.get_origin(hint) in {typing.Literal, dict, Mapping}:
        return False
    return any(takes_text(each) for each in typing.get_args(hint) if each is not Ellipsis)


def test_a_tilde_in_front_is_a_home_directory_and_everything_else_stays(home):
    for given, meant in {
        "~": str(home),
        "~/x": f"{home}/x",
        "a/~/b": "a/~/b",
        "backup~": "backup~",
        "$NOBODY/x": "$NOBODY/x",
        "~nobody-of-this-name/x": "~nobody-of-this-name/x",
        "./~/x": "./~/x",
        "": "",
        "x/": "x/",
    }.items():
        assert expanded(given) == meant
    assert expanded({"a": ["~/x", ("~/y", 3, None)], "~/b": Path("~/z")}) == {
        "a": [f"{home}/x", (f"{home}/y", 3, None)],
        "~/b": home / "z",
    }
    assert given_path("~/x") == home / "x"


def test_a_word_of_a_command_line_is_read_in_front_and_behind_its_first_equals_sign(home):
    words = ["~/jobs.json:pick", "--output_dir=~/x", "agent.file=~/y", "--map=a=~/b", "--name", "a~"]
    meant = [f"{home}/jobs.json:pick", f"--output_dir={home}/x", f"agent.file={home}/y", "--map=a=~/b", "--name", "a~"]
    assert typed_words(words) == meant


def class_read_by(program: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the dataclass that a program reads its command line into."""
    found: list[Any] = []

    def asked(options_class: Any, **_: Any) -> Any:
        found.append(options_class)
        raise Read

    with monkeypatch.context() as patch:
        patch.setattr(tyro, "cli", asked)
        with pytest.raises(Read):
            PROGRAMS[program](NEEDED.get(program, []))
    commands = typing.get_args(found[0])
    return (
        found[0]
        if not commands
        else {"to": convert.ToLeRobot, "from": convert.FromLeRobot}[program[8:].split("_", maxsplit=1)[0]]
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_of_every_program_that_takes_a_text_takes_a_path_below_home(program, home, monkeypatch):
    options_class = class_read_by(program, monkeypatch)
    hints = typing.get_type_hints(options_class, include_extras=True)
    names = [field.name for field in dataclasses.fields(options_class) if takes_text(hints[field.name])]
    positional = [name for name in names if "Positional" in str(hints[name])]
    words = [f"--{'from' if name == 'from_run' else name}=~/{name}" for name in names if name not in positional]
    found: list[str] = []
    parse = tyro.cli

    def parsed(options_class: Any, **settings: Any) -> Any:
        options, rest = parse(options_class, **{**settings, "return_unknown_args": True})
        found.extend([*texts_of(options), *rest])
        raise Read

    monkeypatch.setattr(tyro, "cli", parsed)
    with pytest.raises(Read):
        PROGRAMS[program]([*NEEDED.get(program, []), *words, *(f"~/{name}" for name in positional)])
    assert not [text for text in found if "~" in text]
    assert {str(home / name) for name in names} <= set(found)


def test_every_key_of_a_job_file_that_takes_a_text_takes_a_path_below_home(home):
    texts = {"python": "~/python", "conditions": "~/conditions.json", "language_instruction": "~/words"}
    blocks = {
        "arena_env_args": {
            "environment": "${variables.root}/made",
            "embodiment": "~/robot.yaml",
            "deep": [{"a": "~/b"}],
        },
        "policy_config_dict": {"checkpoint": "~/model.pt", "cameras": {"front": ["~/front"]}},
        "variations": {"light": {"file": "~/light"}},
        "latency": {"file": "~/delays.csv"},
        "labels": {"from": "~/label"},
    }
    (home / "delays.csv").write_text("latency_ms\n10\n")
    job = {"name": "one", "policy_type": "~/policy", "num_episodes": 1, **texts, **blocks}
    write_jobs(home / "jobs.json", [job], variables={"root": "~/root"})
    (read,) = load_jobs_file(home / "jobs.json").jobs
    found = texts_of(read)
    assert not [text for text in found if "~" in text]
    meant = set(re.findall(r"~/([\w.]+)", str(job))) - {"root"} | {"root/made"}
    assert {str(home / name) for name in meant} <= set(found)


def classes_of_options() -> dict[str, type]:
    """Return the options of each registered environment and policy that is a dataclass."""
    found = {
        f"{kind} {name}": known.get(name).config_class
        for kind, known in {"environment": ENVIRONMENTS, "policy": POLICIES}.items()
        for name in known.names()
    }
    return {name: options_class for name, options_class in found.items() if options_class is not None}


@pytest.mark.parametrize(("owner", "options_class"), classes_of_options().items())
def test_every_option_of_environments_and_policies_that_takes_a_text_takes_a_path_below_home(
    owner, options_class, home
):
    hints = option_types(options_class)
    texts = [name for name, hint in hints.items() if takes_text(hint)]
    for each in texts:
        needed: dict[str, Any] = {name: "x" for name in texts if required(options_class, name)}
        given = {**needed, each: ["~/x"] if "tuple" in str(hints[each]) else "~/x"}
        try:
            read = texts_of(getattr(read_options(options_class, given, owner=owner), each))
        except ConfigError as error:
            # Not every text is a path. An option that knows its values names what was meant.
            read = re.findall(r"~?[\w/.-]*/x\b", str(error))
        assert read in ([], [f"{home}/x"])


def required(config_class: type, name: str) -> bool:
    (field,) = (field for field in dataclasses.fields(config_class) if field.name == name)
    return field.default is field.default_factory is dataclasses.MISSING


def test_a_description_of_a_robot_names_its_model_below_home(home):
    text = (ASSETS / "robots" / "menagerie" / "franka_emika_panda.yaml").read_text().replace("panda.xml", "~/panda.xml")
    (home / "robot.yaml").write_text(text)
    assert Path(read_description(home / "robot.yaml").mjcf) == home / "panda.xml"


def test_every_argument_in_python_that_takes_a_path_takes_one_below_home(home):
    methods = [arena.Results.save, arena.Comparison.save]
    functions = [arena.evaluate, arena.load_results, arena.compare, arena.make, *methods]
    due = {
        (function.__qualname__, name)
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if "PathLike" in str(parameter.annotation)
    }
    keywords = {**typing.get_type_hints(JobFileKeywords), **typing.get_type_hints(JobKeywords)}
    due |= {("evaluate", name) for name, hint in keywords.items() if "PathLike" in str(hint)}
    write_jobs(home / "jobs.json", [{**CARTPOLE, "name": name} for name in ("still", "idle")])

    results = arena.evaluate("~/jobs.json", output_dir="~/run", save_conditions="~/conditions.json")
    results.save("~/kept")
    arena.compare(arena.load_results(Path("~/kept")), "~/run").save("~/compared")
    arena.evaluate("~/jobs.json", resume="~/run")
    arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=2, output_base_dir="~/base")
    with pytest.raises(arena.ConfigError, match=re.escape(f"{home}/absent.json")):
        arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=2, conditions=Path("~/absent.json"))
    with pytest.raises(arena.ConfigError, match=re.escape(f"{home}/absent.csv")):
        arena.evaluate(
            environment="track_motion", policy="zero_action", num_episodes=2, motion_file=Path("~/absent.csv")
        )

    assert {each.name for each in home.iterdir()} >= {"run", "kept", "compared", "base", "conditions.json"}
    assert not (home / "~").exists()
    assert due == {
        *(("evaluate", name) for name in ("jobs", "output_dir", "save_conditions", "resume", "output_base_dir")),
        ("evaluate", "conditions"),
        ("evaluate", "motion_file"),
        ("load_results", "directory"),
        ("compare", "runs"),
        ("Results.save", "directory"),
        ("Comparison.save", "output_dir"),
    }


def test_a_run_and_a_conversion_write_below_home_and_make_no_directory_called_tilde(home):
    write_jobs(home / "jobs.json", [{**CARTPOLE, "name": "still"}])
    assert cli.main(["run", "--eval_jobs_config=~/jobs.json", "--output_dir=~/run", "--no_report"]) == 0
    convert_words = ["to_lerobot", "--dataset=~/run", "--output_dir=~/made/lerobot", "--no_videos"]
    assert convert.main(convert_words) == 0
    assert (home / "made" / "lerobot" / "meta" / "info.json").is_file()
    assert not (home / "~").exists()


def test_no_other_place_has_a_rule_of_its_own():
    sources = [
        path for package in ("isaaclab_arena", "isaaclab_arena_gr00t") for path in (ROOT / package).rglob("*.py")
    ]
    having = [path.name for path in sources if re.search(r"expanduser|expandvars", path.read_text(encoding="utf-8"))]
    assert having == ["paths.py"]


# What is no plain file is named for what it is, without being opened.


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_plain_file_is_one_also_through_a_link(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert not_a_plain_file(tmp_path / "file") is None
    assert not_a_plain_file(tmp_path / "link") is None


def test_everything_else_is_named_for_what_it_is(tmp_path, pipe):
    (tmp_path / "link").symlink_to(pipe)
    (tmp_path / "circle").symlink_to("circle")
    assert not_a_plain_file(pipe) == "is a pipe, not a file; save what comes through it as a file"
    assert not_a_plain_file(tmp_path / "link") == not_a_plain_file(pipe)
    assert not_a_plain_file(tmp_path) == "is a directory, not a file"
    assert not_a_plain_file(Path("/dev/zero")) == "is a device, not a file"
    assert not_a_plain_file(tmp_path / "none") == "there is no such file"
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "circle"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / "nul\0"))
    assert "cannot be read" in str(not_a_plain_file(tmp_path / ("long" * 2000)))


NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_directories_of_the_same_second_are_numbered(tmp_path):
    directories = [make_dated_directory(tmp_path, suffix=suffix, now=NOON) for suffix in ("", "", "", "_fast", "_fast")]
    assert [directory.name.removeprefix("2026-11-21_12-00-00") for directory in directories] == [
        *("", "_2", "_3"),
        *("_fast", "_fast_2"),
    ]
    assert all(directory.is_dir() for directory in directories)
