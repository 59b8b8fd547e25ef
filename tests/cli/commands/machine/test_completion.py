"""What shells complete after `isaaclab-arena`."""

import shutil
import subprocess

import pytest

from isaaclab_arena.cli.commands.completion import completable_commands, script_for
from isaaclab_arena.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def commands():
    return completable_commands()


def completed(script: str, *words: str) -> list[str]:
    """Completions by bash for the last word."""
    line = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _isaaclab_arena; echo "${COMPREPLY[@]}"'
    command = ["bash", "-c", f"{script}\n{line}", "bash", "isaaclab-arena", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["li"], ["list"]),
        (["fine"], ["finetune"]),
        (["run", "--eval_"], ["--eval_jobs_config"]),
        (["run", "--assignment", "d"], ["dynamic"]),
        (["list", "env"], ["environments"]),
        (["policy", "--policy_type", "scr"], ["scripted"]),
        (["policy", "--policy_type", "scripted", "lift"], ["lift_object"]),
        (["policy", "lift_object", "--object", "cyl"], ["cylinder"]),
        (["view", "--policy", "zero"], ["zero_action"]),
        (["train", "velo"], ["velocity_go1"]),
        (["completion", "f"], ["fish"]),
        (["run", "--eval_jobs_config", "jobs"], []),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_names_and_leaves_files_to_itself(commands, typed, offered):
    assert completed(script_for("bash", commands), *typed) == offered


def test_every_command_of_the_help_is_completed(commands):
    assert set(COMMANDS) <= set(completed(script_for("bash", commands), ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell, tmp_path, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes_an_option_and_its_values(commands, tmp_path):
    (tmp_path / "script").write_text(script_for("fish", commands))
    for line, offered in (("run --assi", "--assignment"), ("policy --policy_type scr", "scripted")):
        asked = f"source {tmp_path / 'script'}; complete -C 'isaaclab-arena {line}'"
        finished = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, check=True)
        assert finished.stdout.split() == [offered]
