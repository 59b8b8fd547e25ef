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
    **{
        name: (lambda words, name=name: cli.main([name, *words]))
        for name in (*COMMANDS, *(name for name, _ in commands_of_others()))
    },
    "eval_runner": eval_runner.main,
    "policy_runner": policy_runner.main,
    "train.py": train.main,
    "finetune.py": finetune.main,
    "serve.py": serve.main,
    "convert to_lerobot": lambda words: convert.main(["to_lerobot", *words]),
    "convert from_lerobot": lambda words: convert.main(["from_lerobot", *words]),
}
# What a program cannot be read without, besides texts and paths.
NEEDED = {
    "plan": ["--difference", "0.1"],
    "list": ["environments"],
    "completion": ["bash"],
    "new": ["policy"],
    "serve": ["--protocol", "openpi"],
    "serve.py": ["--protocol", "openpi"],
    "collect": ["--num_episodes", "1"],
}

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
    for given in ("a/~/b", "backup~", "$NOBODY/x", "~nobody-of-this-name/x", "./~/x", "", "x/"):
        assert expanded(given) == given
    assert expanded({"a": ["~/x", ("~", 3, None)], "~/b": Path("~/z")}) == {
        "a": [f"{home}/x", (str(home), 3, None)],
        "~/b": home / "z",
    }
    assert given_path("~/x") == home / "x"


def test_a_word_of_a_command_line_is_read_in_front_and_behind_its_first_equals_sign(home):
    words = ["~/jobs.json:pick", "--output_dir=~/x", "agent.file=~/y", "--map=a=~/b", "--name", "a~"]
    meant = [f"{home}/jobs.json:pick", f"--output_dir={home}/x", f"agent.file={home}/y", "--map=a=~/b", "--name", "a~"]
    assert typed_words(words) == meant


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_of_every_program_that_takes_a_text_takes_a_path_below_home(program, home, monkeypatch):
    found: list[Any] = []
    parse = tyro.cli

    def asked(options_class: Any, **settings: Any) -> Any:
        # The first time a program says what it reads its command line into, and the second time it reads it.
        found.append(options_class)
        if len(found) > 1:
            options, rest = parse(options_class, **{**settings, "return_unknown_args": True})
            found.extend([*texts_of(options), *rest])
        raise Read

    monkeypatch.setattr(tyro, "cli", asked)
    with pytest.raises(Read):
        PROGRAMS[program](NEEDED.get(program, []))
    if program.startswith("convert "):
        found[0] = convert.ToLeRobot if "to_" in program else convert.FromLeRobot
    hints = typing.get_type_hints(found[0], include_extras=True)
    names = [field.name for field in dataclasses.fields(found[0]) if takes_text(hints[field.name])]
    positional = [name for name in names if "Positional" in str(hints[name])]
    words = [f"--{'from' if name == 'from_run' else name}=~/{name}" for name in names if name not in positional]
    with pytest.raises(Read):
        PROGRAMS[program]([*NEEDED.get(program, []), *words, *(f"~/{name}" for name in positional)])
    assert not [text for text in found[2:] if "~" in text]
    assert {str(home / name) for name in names} <= set(found[2:])


def test_every_key_of_a_job_file_that_takes_a_text_takes_a_path_below_home(home):
    texts = {"python": "~/python", "conditions": "~/conditions.json", "language_instruction": "~/words"}
    made = {"environment": "${variables.root}/made", "embodiment": "~/robot.yaml", "deep": [{"a": "~/b"}]}
    blocks = {
        "arena_env_args": made,
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
    meant = {*re.findall(r"~/([\w.]+)", str(job)), "root/made"}
    assert {str(home / name) for name in meant} <= set(found)


CLASSES_OF_OPTIONS = {
    f"{kind} {name}": known.get(name).config_class
    for kind, known in {"environment": ENVIRONMENTS, "policy": POLICIES}.items()
    for name in known.names()
}


@pytest.mark.parametrize("owner", [owner for owner, given in CLASSES_OF_OPTIONS.items() if given is not None])
def test_every_option_of_environments_and_policies_that_takes_a_text_takes_a_path_below_home(owner, home):
    options_class = CLASSES_OF_OPTIONS[owner]
    hints = option_types(options_class)
    texts = [field for field in dataclasses.fields(options_class) if takes_text(hints[field.name])]
    needed = {each.name: "x" for each in texts if each.default is each.default_factory is dataclasses.MISSING}
    for each in texts:
        given = {**needed, each.name: ["~/x"] if "tuple" in str(hints[each.name]) else "~/x"}
        try:
            read = texts_of(getattr(read_options(options_class, given, owner=owner), each.name))
        except ConfigError as error:
            # Not every text is a path. An option that knows its values names what was meant.
            read = re.findall(r"~?[\w/.-]*/x\b", str(error))
        assert read in ([], [f"{home}/x"])


def test_a_description_of_a_robot_names_its_model_below_home(home):
    text = (ASSETS / "robots" / "menagerie" / "franka_emika_panda.yaml").read_text().replace("panda.xml", "~/panda.xml")
    (home / "robot.yaml").write_text(text)
    assert Path(read_description(home / "robot.yaml").mjcf) == home / "panda.xml"


def test_every_argument_in_python_that_takes_a_path_takes_one_below_home(home):
    functions = [
        arena.evaluate,
        arena.load_results,
        arena.compare,
        arena.make,
        arena.Results.save,
        arena.Comparison.save,
    ]
    due = {
        f"{function.__qualname__} {name}"
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if "PathLike" in str(parameter.annotation)
    }
    keywords = {**typing.get_type_hints(JobFileKeywords), **typing.get_type_hints(JobKeywords)}
    due |= {f"evaluate {name}" for name, hint in keywords.items() if "PathLike" in str(hint)}
    write_jobs(home / "jobs.json", [{**CARTPOLE, "name": name} for name in ("still", "idle")])

    results = arena.evaluate("~/jobs.json", output_dir="~/run", save_conditions="~/conditions.json")
    results.save("~/kept")
    arena.compare(arena.load_results(Path("~/kept")), "~/run").save("~/compared")
    arena.evaluate("~/jobs.json", resume="~/run")
    short: dict[str, Any] = {"environment": "cartpole", "policy": "zero_action", "num_episodes": 2}
    arena.evaluate(**short, output_base_dir="~/base")
    motion: dict[str, Any] = {"environment": "track_motion", "motion_file": Path("~/absent")}
    for absent in ({**short, "conditions": "~/absent"}, {**short, **motion}):
        with pytest.raises(arena.ConfigError, match=re.escape(f"{home}/absent")):
            arena.evaluate(**absent)

    assert {each.name for each in home.iterdir()} >= {"run", "kept", "compared", "base", "conditions.json"}
    assert not (home / "~").exists()
    named = ("jobs", "output_dir", "save_conditions", "resume", "output_base_dir", "conditions", "motion_file")
    others = {"load_results directory", "compare runs", "Results.save directory", "Comparison.save output_dir"}
    assert due == {*(f"evaluate {name}" for name in named), *others}


def test_no_other_place_has_a_rule_of_its_own():
    sources = [
        path for package in ("isaaclab_arena", "isaaclab_arena_gr00t") for path in (ROOT / package).rglob("*.py")
    ]
    having = [path.name for path in sources if re.search(r"expanduser|expandvars", path.read_text(encoding="utf-8"))]
    assert having == ["paths.py"]


# What is no plain file is named for what it is, without being opened.


def test_what_is_no_plain_file_is_named_for_what_it_is(tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("to_file", "file"), ("to_pipe", "pipe"), ("circle", "circle")):
        (tmp_path / name).symlink_to(target)
    told = {
        **dict.fromkeys(("file", "to_file"), "None"),
        **dict.fromkeys(("pipe", "to_pipe"), "is a pipe"),
        **dict.fromkeys(("circle", "nul\0", "long" * 2000), "cannot be read"),
        ".": "is a directory",
        "/dev/zero": "is a device",
        "none": "there is no such file",
    }
    for name, words in told.items():
        assert words in str(not_a_plain_file(tmp_path / name)), name


def test_directories_of_the_same_second_are_numbered(tmp_path):
    noon = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    made = [make_dated_directory(tmp_path, suffix=suffix, now=noon) for suffix in ("", "", "", "_fast", "_fast")]
    stamp = "2026-11-21_12-00-00"
    assert [each.name for each in made] == [stamp + end for end in ("", "_2", "_3", "_fast", "_fast_2")]
    assert all(each.is_dir() for each in made)
