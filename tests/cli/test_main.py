"""Tests of the command line: what a person types, and what comes back."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from isaaclab_arena.cli.main import COMMANDS, main
from tests.end_to_end.launching import ROOT, run

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


def test_no_command_is_a_mistake(capsys):
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_an_unknown_command_gets_a_suggestion(capsys):
    assert main(["valdate"]) == 2
    assert "no command called 'valdate'; did you mean 'validate'?" in capsys.readouterr().err


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
    assert f"usage: isaaclab-arena {command} " in capsys.readouterr().out


def test_list_shows_summaries_and_of_one_environment_the_options_with_defaults(capsys):
    assert main(["list", "environments"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^lift_object +Pick an object up", out, re.MULTILINE)
    assert "cannot be loaded" not in out
    assert main(["list", "environments", "lift_object"]) == 0
    assert re.search(r"\bobject = cube;", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_shown(word, capsys):
    assert main([word]) == 0
    assert re.fullmatch(r"isaaclab-arena \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("what", "name"),
    [("policies", "scripted"), ("suites", "metaworld_mt50"), ("embodiments", "panda"), ("objects", "cube")],
)
def test_list_shows_the_other_catalogs(what, name, capsys):
    assert main(["list", what]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^{name}\b", out, re.MULTILINE)
    assert "cannot be loaded" not in out


def test_list_shows_what_a_policy_is_given_and_gives_in_one_environment(capsys):
    assert main(["list", "environments", "lift_object", "--embodiment", "so101"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lift_object  Pick an object up")
    assert [line.split() for line in lines if line.startswith("  policy.gripper_pos")] == [
        ["policy.gripper_pos", "(1,)", "float32", "rad", "gripper"]
    ]
    assert "and gives an action of 6 numbers, shape (num_envs, 6):" in lines
    assert "  unit: rad, gripper m" in lines
    assert [line.split() for line in lines if "gripper_width" in line] == [["5", "gripper_width", "0", "to", "0.08"]]
    assert lines[-1] == "20 times a second, at most 160 times an episode"


def test_list_shows_how_many_actions_there_are_to_choose_from(capsys):
    assert main(["list", "environments", "gym:CartPole-v1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("and gives an action of 1 number, shape (num_envs, 1):") + 1].split() == [
        *("0", "0"),
        *("one", "of", "2:", "0", "to", "1"),
    ]


def test_list_shows_one_entry_of_another_catalog_alone(capsys):
    assert main(["list", "objects", "cube"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["cube"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["environments", "lift_objct"], "did you mean 'lift_object'?"),
        (["environments", "lift_object", "--embodimnt", "so101"], "embodimnt: environment 'lift_object' has no such"),
        (["environments", "lift_object", "so101"], "unexpected argument 'so101'"),
        (["policies", "scripted", "--speed", "2"], "unexpected argument '--speed'"),
    ],
)
def test_list_refuses_what_is_not_there(arguments, message, capsys):
    assert main(["list", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_class_in_the_current_directory_can_be_named_as_with_python_m(tmp_path, monkeypatch, capsys):
    (tmp_path / "policy_of_this_directory.py").write_text("from tests.fakes import ShrugPolicy as Mine\n")
    block = {**JOB, "num_episodes": 1, "policy_type": "policy_of_this_directory.Mine"}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [block]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    # A script that pip has installed calls the command without arguments of its own.
    monkeypatch.setattr(sys, "argv", ["isaaclab-arena", "validate", "jobs.json"])
    assert main() == 0, capsys.readouterr().err


def test_validate_sums_a_good_file_up(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [JOB]}))
    assert main(["validate", str(path), "--num_episodes", "5"]) == 0
    assert main(["validate", "--num-episodes", "5", str(path)]) == 0
    assert "1 job, 5 episodes, environments lift_object, policies scripted" in capsys.readouterr().out


def test_validate_tells_the_problems_of_all_files_without_a_traceback(tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps({"jobs": [{**JOB, "num_episode": 5}]}))
    (tmp_path / "b.json").write_text(json.dumps({"jobs": [{**JOB, "num_episodes": 5, "policy_type": "scriptd"}]}))
    assert main(["validate", str(tmp_path / "a.json"), str(tmp_path / "b.json"), str(tmp_path / "c.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{tmp_path}/")[2] for line in lines] == [
        "a.json: job 'lift': num_episode: unknown key; did you mean 'num_episodes'?",
        "b.json: job 'lift': policy_type: no policy called 'scriptd'; did you mean 'scripted'?",
        "c.json: there is no such file",
    ]


def test_a_flood_of_problems_is_cut(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [3] * 60}))
    assert main(["validate", str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "... and 40 more problems"


def test_run_hands_its_arguments_to_the_runner(tmp_path, capsys):
    assert main(["run", "--eval_jobs_config", str(tmp_path / "none.json")]) == 2
    assert "none.json: there is no such file" in capsys.readouterr().err


def test_starting_the_program_loads_nothing_heavy():
    heavy = "{'torch', 'mujoco', 'pandas', 'h5py', 'omegaconf', 'pydantic', 'tyro'}"
    code = f"import sys, isaaclab_arena.cli.main; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_validate_reads_experiments_with_what_the_command_line_sets(tmp_path, capsys):
    run = {"environment": {"type": "lift_object"}, "policy": {"type": "scripted"}, "rollout_limit": {"num_episodes": 3}}
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps({"runs": {"lift": run}}))
    assert main(["validate", str(path), "runs.lift.rollout_limit.num_episodes=7"]) == 0
    assert "1 job, 7 episodes" in capsys.readouterr().out
    assert main(["validate", str(path), "runs.lift.environment.object=cub"]) == 2
    assert "did you mean 'cube'?" in capsys.readouterr().err
