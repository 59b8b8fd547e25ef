"""Tests of what the doctor finds."""

import pytest
import torch

from isaaclab_arena.cli.commands.doctor import examine, package_finding, warp_finding
from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import command, run


def test_this_machine_can_run_evaluations(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "[ok] torch " in out
    assert "one step of 'reach'" in out
    assert out.endswith("everything that is needed works\n")


def test_inconsistent_ranks_are_a_broken_part(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert main(["doctor"]) == 1
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
