"""The commands that compare runs."""

import dataclasses
import errno
import json
import os
import shlex
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import Question
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.analysis.changed_runs import write_changed_run
from tests.analysis.recorded_runs import write_run


def compared(tmp_path, candidate: str, baseline: str, *options: str) -> int:
    old, new = (
        write_run(tmp_path / name, {"lift": outcomes}) for name, outcomes in (("old", baseline), ("new", candidate))
    )
    return main(["compare", str(old), str(new), *options])


@pytest.mark.parametrize(
    ("candidate", "baseline", "options", "code", "verdict"),
    [
        ("s" * 8, "f" * 8, [], 0, "better"),
        ("s" * 99, "s" * 99, ["--margin", "0.05"], 0, "no worse"),
        ("f" * 8, "s" * 8, [], 1, "worse"),
        ("sfsf", "ssff", [], 4, "undecided"),
    ],
)
def test_the_exit_code_is_the_verdict(candidate, baseline, options, code, verdict, tmp_path, capsys):
    assert compared(tmp_path, candidate, baseline, *options) == code
    assert f"verdict: {verdict}" in capsys.readouterr().out
    assert (tmp_path / "new" / "comparison.md").read_text().startswith(f"**{verdict}**")


@pytest.mark.parametrize(("outcomes", "code"), [("s" * 8, 3), ("sfsfsfsf", 3), ("f" * 8, 1)])
def test_no_workflow_passes_because_a_job_was_left_out(outcomes, code, tmp_path, capsys):
    old = write_run(tmp_path / "old", {"lift": "fsfsfsfs" if code == 3 else "s" * 8, "reach": "ssss"})
    new = write_run(tmp_path / "new", {"lift": outcomes, "reach": "sss-"})
    assert main(["compare", str(old), str(new)]) == code
    shown = capsys.readouterr().out
    assert "reach has 1 of 4 episodes to go" in " ".join(shown.split())
    assert ", over what could be compared; 1 could not" in shown


def test_a_run_that_is_named_alone_shows_its_jobs_and_the_lines_to_type(tmp_path, capsys):
    run = write_run(tmp_path / "one run", {"old": "f" * 8, "new": "s" * 8})
    assert main(["compare", str(run)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["old", "new"]
    assert "100.0 [67.6, 100.0]" in lines[3]
    ways_out = [line.partition(": ")[2] for line in lines if line.strip().startswith(("its jobs", "with another"))]
    assert ways_out == [f"isaaclab-arena compare '{run}' {more}" for more in ("--baseline old", "CANDIDATE")]
    # The first line works as it stands.
    assert main(shlex.split(ways_out[0])[1:]) == 0
    assert "new / old" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--github_summary", "--github-summary"])
def test_a_program_reads_json_and_a_workflow_the_tables(option, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert compared(tmp_path, "s" * 8, "f" * 8, "--json", "--output_dir", str(tmp_path / "said"), option) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "better"
    assert (tmp_path / "said" / "comparison.csv").exists()
    assert "| lift | 8 | 100.0 | 0.0 |" in (tmp_path / "summary.md").read_text()


def test_the_best_policy_stands_first(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"bad": "f" * 20, "good": "s" * 20})
    assert main(["leaderboard", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["good", "bad"]
    assert "adjusted by Holm's method for 1 comparisons" in lines[4]
    assert main(["leaderboard", str(run), "--json"]) == 0
    assert [place["name"] for place in json.loads(capsys.readouterr().out)["places"]] == ["good", "bad"]


@pytest.mark.parametrize("words", [["compare", "--baseline", "b"], ["leaderboard"]])
def test_what_cannot_be_compared_has_an_exit_code_of_its_own(words, tmp_path, capsys):
    run = write_run(tmp_path / "run", {"a": "s-", "b": "ss"})
    assert main([*words, str(run)]) == 3
    assert "episodes to go" in capsys.readouterr().err


def test_the_number_of_pairs_is_told_for_outcomes_that_agree_more_or_less(tmp_path, capsys):
    assert main(["plan", "--baseline", "0.35", "--difference", "0.35"]) == 0
    out = capsys.readouterr().out
    assert "35.0 % against 70.0 %" in out
    assert "33 episodes of either" in out
    run = write_run(tmp_path / "run", {"lift": "sssf", "reach": "ff"})
    assert main(["plan", "--from", str(run), "--job", "lift", "--difference", "-0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["baseline"], document["candidate"]) == (0.75, 0.25)
    assert [each["agreement"] for each in document["paired"]] == [0.0, 0.5, 1.0]


def test_a_job_file_is_run_with_its_arms_and_compared_over_equal_episodes(tmp_path, capsys):
    job = {"name": "reach", "policy_type": "scripted", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    plain, arms, file = tmp_path / "plain", tmp_path / "arms", str(tmp_path / "jobs.json")
    assert main(["run", file, "--output_dir", str(plain), "--no_report"]) == 0
    options = ["--axes", "robot_start", "--levels", "1", "--output_dir", str(arms)]
    assert main(["robustness", file, *options, "--no_dataset"]) == 0
    assert "reach: at level 1 success drops along no axis" in capsys.readouterr().out
    assert "Robustness</h2>" in (arms / "report.html").read_text()
    benign, alone = (pd.read_csv(each / "episodes.csv", dtype=str).set_index("job") for each in (arms, plain))
    benign, alone = (each.drop(columns="checksum") for each in (benign.loc["reach-benign"], alone))
    pd.testing.assert_frame_equal(benign.reset_index(drop=True), alone.reset_index(drop=True))
    figures = pd.read_csv(arms / "robustness.csv").set_index("axis")
    assert figures.loc["robot_start", "pairs"] == 2
    assert main(["robustness", str(plain)]) == 3, "a run without arms"


def test_a_finished_run_with_arms_is_read_and_shown_wherever_it_lies(tmp_path, monkeypatch, capsys):
    run = write_changed_run(tmp_path / "run", {("benign", 0): "ssss", ("delay", 5): "fsff"})
    assert main(["robustness", str(run)]) == 0
    assert "+75.0" in capsys.readouterr().out
    (run / "robustness.csv").unlink()
    make_read_only(run, monkeypatch)
    assert main(["robustness", str(run)]) == 0
    said = capsys.readouterr()
    assert "+75.0" in said.out
    assert f"robustness.csv: {REASON}" in said.err


# The answers of commands that compare, over a run on a disk that takes no files.


REASON = "Read-only file system"


def make_read_only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system refuse to make anything below a directory. Modes of files do not stop root."""
    open_file, make_directory = os.open, os.mkdir

    def refused(path: str) -> OSError | None:
        below = Path(path).absolute().is_relative_to(directory)
        return OSError(errno.EROFS, REASON, str(path)) if below else None

    def opened(path, flags, *arguments, **more):
        if flags & os.O_CREAT and (error := refused(path)):
            raise error
        return open_file(path, flags, *arguments, **more)

    def made(path, *arguments, **more):
        if error := refused(path):
            raise error
        make_directory(path, *arguments, **more)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "mkdir", made)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    path = write_run(tmp_path / "run", {"old": "f" * 20, "new": "s" * 20})
    question = Question(name="check", jobs=("new", "old"), max_episodes=20)
    plan = dataclasses.replace(read_run_plan(path), questions=(question,))
    (path / "run.json").unlink()
    write_run_plan(path, plan)
    make_read_only(path, monkeypatch)
    return path


def test_the_answer_is_given_and_why_nothing_is_kept_of_it(run, tmp_path, capsys):
    typed = ["compare", str(run), "--baseline", "old"]
    assert main(typed) == 0
    said = capsys.readouterr()
    assert "verdict: better" in said.out
    [line] = said.err.splitlines()
    assert f"cannot write {run / 'comparison.json'}: {REASON}" in line
    assert "--output_dir" in line
    assert main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main([*typed, "--output_dir", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "comparison.json").is_file()
    capsys.readouterr()
    assert main([*typed, "--output_dir", str(run / "below" / "it")]) == 1
    said = capsys.readouterr()
    assert (said.out, REASON in said.err, len(said.err.splitlines())) == ("", True, 1)


@pytest.mark.parametrize("command", ["merge", "report"])
def test_what_is_nothing_but_files_is_a_failure_in_one_line(command, run, capsys):
    assert main([command, str(run)]) == 1
    assert REASON in capsys.readouterr().err
