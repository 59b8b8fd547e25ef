"""The answers of commands that compare, over a run on a disk that takes no files."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import Question
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.analysis.recorded_runs import write_run
from tests.analysis.robustness.changed_runs import write_changed_run

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


@pytest.mark.parametrize(
    ("words", "shown", "file"),
    [
        (["compare", "RUN", "--baseline", "old"], "verdict: better", "comparison.json"),
        (["replay-decision", "RUN"], "decided after 7 of 20 episodes", "decision_check.json"),
    ],
)
def test_the_answer_is_given_and_why_nothing_is_kept_of_it(words, shown, file, run, tmp_path, capsys):
    typed = [str(run) if word == "RUN" else word for word in words]
    assert main(typed) == 0
    said = capsys.readouterr()
    assert shown in said.out
    way_out = "name a directory with --output_dir"
    assert said.err == f"nothing is kept of this: cannot write {run / file}: {REASON}; {way_out}\n"
    assert main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main([*typed, "--output_dir", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / file).is_file()
    capsys.readouterr()
    assert main([*typed, "--output_dir", str(run / "below" / "it")]) == 1
    said = capsys.readouterr()
    assert (said.out, REASON in said.err, len(said.err.splitlines())) == ("", True, 1)


def test_the_robustness_of_a_run_is_shown_all_the_same(tmp_path, monkeypatch, capsys):
    run = write_changed_run(tmp_path / "run", {("benign", 0): "ssss", ("delay", 5): "fsff"})
    make_read_only(run, monkeypatch)
    assert main(["robustness", str(run)]) == 0
    said = capsys.readouterr()
    assert "+75.0" in said.out
    assert f"robustness.csv: {REASON}; copy the run" in said.err


@pytest.mark.parametrize("command", ["merge", "report"])
def test_what_is_nothing_but_files_is_a_failure_in_one_line(command, run, capsys):
    assert main([command, str(run)]) == 1
    assert REASON in capsys.readouterr().err
