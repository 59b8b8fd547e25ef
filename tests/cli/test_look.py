"""The commands that show what there is."""

import json
import shutil
import subprocess
from dataclasses import dataclass

import pytest
import torch

from isaaclab_arena.cli.listing import catalog_text
from isaaclab_arena.cli.machine import completable_commands, package_finding, script_for, warp_finding
from isaaclab_arena.cli.main import COMMANDS, main
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.registry import Registry
from tests.analysis.recorded_runs import write_run
from tests.end_to_end.launching import command, run
from tests.fakes import ShrugPolicy

# Tests of the catalogs as text.


@dataclass
class UnreadableCfg(PolicyCfg):
    model: "ImportedForPyrightOnly" = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    gain: float = 2.0


class UnreadablePolicy(ShrugPolicy):
    """Has an option whose type is not there when the program runs."""

    config_class = UnreadableCfg


def test_an_entry_that_cannot_be_loaded_does_not_hide_the_others_nor_an_option_whose_type_is_not_there():
    registry = Registry("policy", {"broken": "no_such_module:SceneObject"}, "isaaclab_arena.no_such_group")
    registry.register("shrug", ShrugPolicy)
    registry.register("unreadable", UnreadablePolicy)
    broken, shrug, _ = catalog_text(registry).splitlines()
    assert broken.startswith("broken      policy 'broken' cannot be loaded: ModuleNotFoundError: No module named")
    assert shrug.endswith("  Does nothing, and remembers how it was called. raise_at and action make it misbehave.")
    for name, wanted in (
        ("shrug", ["raise_at = -1", "action = zeros"]),
        ("unreadable", ["model = None", "gain = 2.0"]),
    ):
        _, *options = catalog_text(registry, [name]).splitlines()
        assert [option.strip() for option in options] == wanted


def test_names_without_number_are_listed_by_their_pattern_and_an_empty_catalog_is_an_empty_text():
    registry = Registry("environment", {}, "isaaclab_arena.no_such_group", {"fake": "tests.fakes:named_coin_builder"})
    assert catalog_text(registry).startswith("fake:...  Fakes that replace mocks")
    assert catalog_text(Registry("policy", {}, "isaaclab_arena.no_such_group")) == ""


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("environments", "lift_object     Pick an object up"),
        ("environments", "close_drawer    Push an open drawer shut."),
        ("environments", "robosuite:...   Build the tasks of robosuite, "),
        ("tasks", "reach"),
        ("policies", "scripted"),
        ("embodiments", "so101          5 joints, gripper 8 cm wide, reaches 0.39 m"),
        ("embodiments", "menagerie:...  Robots of MuJoCo Menagerie"),
        ("objects", "cube"),
        ("suites", "metaworld_mt50"),
    ],
)
def test_a_catalog_has_one_line_for_each_name_and_says_how_to_see_more(what, line, capsys):
    assert main(["list", what, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert what != "environments" or len({each["summary"] for each in listed}) == len(listed)
    assert main(["list", what]) == 0
    *lines, empty, hint = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if ":..." not in line] == [each["name"] for each in listed]
    assert any(shown.startswith(line) for shown in lines)
    assert "cannot be loaded" not in "\n".join(lines)
    assert (empty, hint) == ("", f"isaaclab-arena list {what} NAME shows one of them in full")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("objects cube", {"cube"}),
        ("tasks reach", {"reach  Bring the tool centre point to a marker", "agent.max_iterations = 250"}),
        ("environments lift_object", {"object = cube;"}),
        # What a policy is given and gives.
        (
            "environments lift_object --embodiment so101",
            {
                "lift_object  Pick an object up", "policy.gripper_pos (1,) float32 rad gripper", "unit: rad, gripper m",
                "and gives an action of 6 numbers, shape (num_envs, 6):", "5 gripper_width 0 to 0.08",
                "20 times a second, at most 160 times an episode",
            },
        ),
        ("environments gym:CartPole-v1", {"and gives an action of 1 number, shape (num_envs", "0 0 one of 2: 0 to 1"}),
    ],
)  # fmt: skip
def test_one_entry_is_shown_in_full(words, shown, capsys):
    assert main(["list", *words.split()]) == 0
    text = capsys.readouterr().out
    lines = [line.strip() for line in text.splitlines()] + [" ".join(line.split()) for line in text.splitlines()]
    for wanted in shown:
        assert any(wanted in line for line in lines), wanted


def test_one_entry_is_shown_in_full_in_json(capsys):
    assert main(["list", "policies", "scripted", "--json"]) == 0
    [policy] = json.loads(capsys.readouterr().out)
    assert policy["name"] == "scripted"
    assert {"name": "speed", "required": False, "choices": [], "default": 1.0} in policy["options"]
    assert main(["list", "environments", "lift_object", "--json", "--embodiment", "so101"]) == 0
    [lift] = json.loads(capsys.readouterr().out)
    assert "panda" in lift["embodiments"]
    assert (lift["observation"]["policy.gripper_pos"]["shape"], lift["action"]["shape"]) == ([1], [6])
    assert (lift["control_dt"], lift["max_episode_length"]) == (0.05, 160)


def test_the_command_says_where_the_page_is(tmp_path, capsys):
    write_run(tmp_path / "run", {"lift": "sf"})
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"report in {tmp_path / 'run' / 'report.html'}\n"
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "a.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "a.html")}
    assert main(["report", str(tmp_path / "run"), "--embed_mb", "-1"]) == 2


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
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", str(script)], check=True)
    for line, offered in (("run --assi", "--assignment"), ("policy --policy_type scr", "scripted")):
        if shell == "fish":
            asked = ["fish", "-c", f"source {script}; complete -C 'isaaclab-arena {line}'"]
            assert subprocess.check_output(asked, text=True).split() == [offered]


# Tests of what the doctor finds.


def test_this_machine_can_run_evaluations_unless_ranks_contradict_each_other(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "[ok] torch " in out
    assert "one step of 'reach'" in out
    assert out.endswith("everything that is needed works\n")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["works"], found["ranks"]) == (True, [])
    subjects = [finding["subject"] for finding in found["findings"]]
    assert len(subjects) == len(set(subjects))
    assert {"python", "torch", "mujoco", "processors", "gloo", "ranks", "free disk", "physics"} <= set(subjects)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "[!!] ranks" in out
    assert out.endswith("1 needed parts do not work\n")


@pytest.mark.parametrize(
    ("name", "specifiers", "present"),
    [("numpy", "", True), ("numpy", "<1000,>=1.0", True), ("numpy", ">=1000", False), ("no-such-package", "", False)],
)
def test_a_package_is_there_in_a_version_that_will_do(name, specifiers, present):
    assert package_finding(name, specifiers, required=True).present is present
    # A missing extra is marked, but not as broken.
    assert str(package_finding(name, specifiers, required=False)).startswith("[ok]" if present else "[--]")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_warp_says_what_it_lacks_for_a_gpu_and_evaluations_go_on_without():
    assert str(warp_finding(torch.device("cpu"))).startswith("[ok] warp cpu             Warp calls it ")
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
