"""The commands that show what there is."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from isaaclab_arena.cli.derived import report as main
from isaaclab_arena.cli.listing import catalog_data, catalog_text
from isaaclab_arena.cli.machine import completable_commands, examine, package_finding, script_for, warp_finding
from isaaclab_arena.cli.main import COMMANDS
from isaaclab_arena.cli.main import main as completion_main
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.registry import Registry
from tests.analysis.recorded_runs import write_run
from tests.end_to_end.launching import command, run
from tests.fakes import CoinBuilder, ShrugPolicy

# Tests of the catalogs as text.


def test_an_entry_that_cannot_be_loaded_does_not_hide_the_others():
    registry = Registry("policy", {"broken": "no_such_module:SceneObject"}, "isaaclab_arena.no_such_group")
    registry.register("shrug", ShrugPolicy)
    broken, shrug = catalog_text(registry).splitlines()
    assert broken.startswith("broken  policy 'broken' cannot be loaded: ModuleNotFoundError: No module named")
    assert shrug == "shrug   Does nothing, and remembers how it was called. raise_at and action make it misbehave."
    _, *options = catalog_text(registry, ["shrug"]).splitlines()
    assert [option.strip() for option in options] == ["raise_at = -1", "action = zeros"]


@pytest.mark.parametrize("what", ["environments", "tasks", "policies", "embodiments", "objects", "suites"])
def test_a_catalog_has_one_line_for_each_name_and_says_how_to_see_more(what, capsys):
    assert completion_main(["list", what, "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert completion_main(["list", what]) == 0
    *lines, empty, hint = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if ":..." not in line] == names
    assert (empty, hint) == ("", f"isaaclab-arena list {what} NAME shows one of them in full")


def test_a_task_of_train_is_shown_with_its_settings(capsys):
    assert completion_main(["list", "tasks", "reach"]) == 0
    first, *settings = capsys.readouterr().out.splitlines()
    assert first == "reach  Bring the tool centre point to a marker, by steps of the end effector."
    assert "agent.max_iterations = 250" in map(str.strip, settings)


@dataclass
class UnreadableCfg(PolicyCfg):
    model: "ImportedForPyrightOnly" = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    gain: float = 2.0


class UnreadablePolicy(ShrugPolicy):
    """Has an option whose type is not there when the program runs."""

    config_class = UnreadableCfg


def test_options_are_listed_although_a_type_among_them_is_not_there():
    registry = Registry("policy", {}, "isaaclab_arena.no_such_group")
    registry.register("unreadable", UnreadablePolicy)
    _, *options = catalog_text(registry, ["unreadable"]).splitlines()
    assert [option.strip() for option in options] == ["model = None", "gain = 2.0"]


def test_an_environment_is_summed_up_by_its_module():
    registry = Registry("environment", {}, "isaaclab_arena.no_such_group")
    registry.register("coin", CoinBuilder())
    assert catalog_text(registry).startswith("coin  Fakes that replace mocks")


def test_environments_of_one_module_are_summed_up_each_by_its_own_words():
    told = catalog_data(ENVIRONMENTS)
    assert len({each["summary"] for each in told}) == len(told)
    text = catalog_text(ENVIRONMENTS)
    assert "close_drawer    Push an open drawer shut.\n" in text
    assert "robosuite:...   Build the tasks of robosuite, " in text


def test_an_empty_catalog_is_an_empty_text():
    assert catalog_text(Registry("policy", {}, "isaaclab_arena.no_such_group")) == ""


def test_names_without_number_are_listed_by_their_pattern():
    registry = Registry("environment", {}, "isaaclab_arena.no_such_group", {"fake": "tests.fakes:named_coin_builder"})
    assert catalog_text(registry).startswith("fake:...  Fakes that replace mocks")


def test_robots_are_summed_up_and_those_of_menagerie_by_their_pattern():
    lines = catalog_text(EMBODIMENTS).splitlines()
    assert "so101          5 joints, gripper 8 cm wide, reaches 0.39 m" in lines
    assert lines[-1].startswith("menagerie:...  Robots of MuJoCo Menagerie")


def test_the_command_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_run(tmp_path / "run", {"lift": "sf"})
    assert main([str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"report in {tmp_path / 'run' / 'report.html'}\n"
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "a.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "a.html")}


@pytest.mark.parametrize("arguments", [[], ["run", "--embed_mb", "-1"]])
def test_mistakes_are_refused(arguments: list[str]):
    with pytest.raises(ConfigError):
        main(arguments)


# What shells complete after `isaaclab-arena`.


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
    assert completion_main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes_an_option_and_its_values(commands, tmp_path):
    (tmp_path / "script").write_text(script_for("fish", commands))
    for line, offered in (("run --assi", "--assignment"), ("policy --policy_type scr", "scripted")):
        asked = f"source {tmp_path / 'script'}; complete -C 'isaaclab-arena {line}'"
        finished = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, check=True)
        assert finished.stdout.split() == [offered]


# Tests of what the doctor finds.


def test_this_machine_can_run_evaluations(capsys):
    assert completion_main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "[ok] torch " in out
    assert "one step of 'reach'" in out
    assert out.endswith("everything that is needed works\n")


def test_inconsistent_ranks_are_a_broken_part(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert completion_main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "[!!] ranks" in out
    assert out.endswith("1 needed parts do not work\n")


def test_every_subject_is_looked_at_once():
    subjects = [finding.subject for finding in examine()]
    assert len(subjects) == len(set(subjects))
    assert {"python", "torch", "mujoco", "processors", "gloo", "ranks", "free disk", "physics"} <= set(subjects)


@pytest.mark.parametrize(
    ("name", "specifiers", "present"),
    [("numpy", "", True), ("numpy", "<1000,>=1.0", True), ("numpy", ">=1000", False), ("no-such-package", "", False)],
)
def test_a_package_is_there_in_a_version_that_will_do(name, specifiers, present):
    assert package_finding(name, specifiers, required=True).present is present


def test_a_missing_extra_is_marked_but_not_as_broken():
    finding = package_finding("no-such-package", "", required=False)
    assert str(finding).startswith("[--] no-such-package")


def test_warp_is_asked_about_a_device():
    assert str(warp_finding(torch.device("cpu"))).startswith("[ok] warp cpu             Warp calls it ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_warp_says_what_it_lacks_for_a_gpu_and_evaluations_go_on_without():
    finding = warp_finding(torch.device("cuda:0"))
    assert (finding.present, finding.required) == (False, False)
    assert "needs a driver for CUDA" in finding.text


def test_every_rank_is_a_line_of_one_table():
    finished = run(command("doctor", ranks=2, module=["-m", "isaaclab_arena.cli"]), extra={"OMP_NUM_THREADS": "3"})
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("everything that is needed works") == 1
    _, _, table = finished.stdout.partition("everything that is needed works\n")
    heading, *lines, verdict = table.splitlines()
    assert heading.split()[:5] == ["rank", "local", "rank", "host", "device"]
    assert [line.split()[:2] for line in lines if line[0].isdigit()] == [["0", "0"], ["1", "1"]]
    assert "'3'" in table
    assert verdict.startswith("2 ranks talk over ")
