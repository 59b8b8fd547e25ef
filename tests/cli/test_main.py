"""Tests of the command line: what a person types, and what comes back."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from isaaclab_arena.cli.main import COMMANDS, main, stdout_for_json
from tests.end_to_end.launching import ROOT, run, write_jobs

JOB = {"name": "lift", "policy_type": "scripted", "arena_env_args": {"environment": "lift_object"}}


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith("usage")]
    assert headings[:7] == ["start:", "evaluate:", "compare:", "look:", "files of a run:", "train:", "machine:"]
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_a_reader_of_the_help_who_has_seen_enough_gets_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "isaaclab_arena.cli", "--help"]
    finished = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (128 + signal.SIGPIPE, "")


def test_another_package_may_bring_a_command_whose_module_says_what_it_does(tmp_path):
    (tmp_path / "greeting.py").write_text('"""Say hello.\n\nAt length."""\nprint("loaded")\nmain = print\n')
    installed = tmp_path / "greeting-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[isaaclab_arena.commands]\nhello = greeting:main\n")
    arguments = [sys.executable, "-m", "isaaclab_arena.cli"]
    helped = run([*arguments, "--help"], directory=tmp_path, extra={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert re.search(r"^  hello +say hello$", helped.stdout, re.MULTILINE)
    assert "loaded" not in helped.stdout, "its module was imported"
    greeted = run([*arguments, "hello", "you"], directory=tmp_path, extra={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert greeted.stdout.splitlines() == ["loaded", "['you']"]


@pytest.mark.parametrize("command", [*COMMANDS, "finetune"])
def test_every_command_has_help_that_calls_it_as_it_was_typed(command, capsys):
    with pytest.raises(SystemExit) as left:
        raise SystemExit(main([command, "--help"]))
    assert left.value.code == 0
    needed = {"run": "JOBS", "train": "TASK"}.get(command, "")
    assert f"usage: isaaclab-arena {command} {needed}" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_shown(word, capsys):
    assert main([word]) == 0
    assert re.fullmatch(r"isaaclab-arena \d+\.\d+\S*\n", capsys.readouterr().out)


def test_a_class_in_the_current_directory_can_be_named_as_with_python_m(tmp_path, monkeypatch, capsys):
    (tmp_path / "policy_of_this_directory.py").write_text("from tests.fakes import ShrugPolicy as Mine\n")
    block = {**JOB, "num_episodes": 1, "policy_type": "policy_of_this_directory.Mine"}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [block]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    # A script that pip has installed calls the command without arguments of its own.
    monkeypatch.setattr(sys, "argv", ["isaaclab-arena", "validate", "jobs.json"])
    assert main() == 0, capsys.readouterr().err


def test_a_flood_of_problems_is_cut(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [3] * 60}))
    assert main(["validate", str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "... and 40 more problems"


def test_validate_sums_a_good_file_up_and_an_experiment_with_what_the_command_line_sets(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [JOB]}))
    for words in ([str(path), "--num_episodes", "5"], ["--num-episodes", "5", str(path)]):
        assert main(["validate", *words]) == 0
        assert "1 job, 5 episodes, environments lift_object, policies scripted" in capsys.readouterr().out
    run = {"environment": {"type": "lift_object"}, "policy": {"type": "scripted"}, "rollout_limit": {"num_episodes": 3}}
    path.write_text(json.dumps({"runs": {"lift": run}}))
    assert main(["validate", str(path), "runs.lift.rollout_limit.num_episodes=7"]) == 0
    assert "1 job, 7 episodes" in capsys.readouterr().out
    assert main(["validate", str(path), "runs.lift.environment.object=cub"]) == 2
    assert "did you mean 'cube'?" in capsys.readouterr().err


def test_validate_tells_the_problems_of_all_files_as_lines_or_in_json(tmp_path, capsys):
    good, wrong, absent = (str(tmp_path / f"{name}.json") for name in ("good", "wrong", "absent"))
    (tmp_path / "good.json").write_text(json.dumps({"jobs": [{**JOB, "num_episodes": 5}]}))
    (tmp_path / "wrong.json").write_text(json.dumps({"jobs": [{**JOB, "num_episode": 5, "policy_type": "scriptd"}]}))
    assert main(["validate", good, wrong, absent]) == 2
    assert [line.partition(f"{tmp_path}/")[2] for line in capsys.readouterr().err.splitlines()] == [
        "wrong.json: job 'lift': num_episode: unknown key; did you mean 'num_episodes'?",
        "wrong.json: job 'lift': policy_type: no policy called 'scriptd'; did you mean 'scripted'?",
        "absent.json: there is no such file",
    ]
    assert main(["validate", "--json", good, wrong, absent]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(each["file"], each["jobs"], each["episodes"]) for each in found["files"]] == [(good, ["lift"], 5)]
    assert [(each["file"], each["job"], each["key"]) for each in found["problems"]] == [
        (wrong, "lift", "num_episode"),
        (wrong, "lift", "policy_type"),
        (absent, None, None),
    ]


# With `--json`, a command prints one JSON document on stdout and nothing else.


@pytest.mark.usefixtures("quick_python")
def test_commands_that_read_a_run_give_json(tmp_path, capsys):
    reach = {"name": "reach", "policy_type": "zero_action", "arena_env_args": {"environment": "reach"}}
    jobs = write_jobs(tmp_path / "jobs.json", [{**reach, "num_episodes": 2}])
    out = tmp_path / "out"
    assert main(["run", str(jobs), "--output_dir", str(out)]) == 0
    capsys.readouterr()
    assert main(["merge", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((out / "results.json").read_text())
    assert "zero_action" in printed.err
    assert main(["verify", str(out), "--json", "--sample", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_sound"], found["problems"], len(found["episodes"])) == (True, [], 1)
    assert found["episodes"][0]["difference"] is None
    assert main(["replay", str(out / "reach"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_bitwise"]
    assert [each["episode_index"] for each in found["episodes"]] == [0, 1]


def test_what_is_for_people_goes_to_stderr_only_where_json_is_wanted(capsys):
    for wanted in (True, False):
        with stdout_for_json(wanted=wanted):
            sys.stdout.write("hello\n")
    assert capsys.readouterr() == ("hello\n", "hello\n")
