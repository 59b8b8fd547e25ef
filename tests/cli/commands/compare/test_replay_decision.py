import dataclasses
import json

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import Question
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.analysis.recorded_runs import write_run

QUESTION = Question(name="check", jobs=("new", "old"), max_episodes=20)


def run_that_asks(tmp_path, *questions: Question, new: str = "s" * 20, old: str = "f" * 20):
    run = write_run(tmp_path / "run", {"old": old, "new": new})
    plan = dataclasses.replace(read_run_plan(run), questions=questions)
    (run / "run.json").unlink()
    write_run_plan(run, plan)
    return run


def test_the_only_question_of_a_run_is_decided_again(tmp_path, capsys):
    run = run_that_asks(tmp_path, QUESTION)
    assert main(["replay-decision", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "check: is new better or worse than old?" in shown
    assert "in the order of the run: new is better than old, decided after 7 of 20 episodes (e-value 26.8)" in shown
    assert "in 1,000 other orders: new is better than old 100.0 %, undecided 0.0 %" in shown
    assert "decided after so many episodes: 10 % by 7, 25 % by 7, 50 % by 7, 75 % by 7, 90 % by 7" in shown
    assert f"7 to 7  1000 {'█' * 40}" in shown
    assert (run / "decision_check.svg").read_text().startswith("<svg")
    assert (run / "decision_check.png").read_bytes().startswith(b"\x89PNG")


def test_questions_of_a_run_share_its_level(tmp_path, capsys):
    run = run_that_asks(tmp_path, QUESTION, dataclasses.replace(QUESTION, name="margin", margin=0.1))
    assert main(["replay-decision", str(run), "--comparison", "check", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    # Twice the evidence takes one more pair.
    assert said["decision"]["episodes"] == 8
    assert len(said["log_e_values"]) == 20
    assert said["other_orders"]["verdicts"] == {"better": 1000}
    assert said["other_orders"]["decided_after"] == [8] * 1000
    assert json.loads((run / "decision_check.json").read_text()) == said


def test_jobs_that_were_never_compared_can_be_named(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"old": "s" * 9, "new": "sse" + "s" * 6})
    assert main(["replay-decision", str(run), "--jobs", "new,old", "--output_dir", str(tmp_path / "said")]) == 0
    shown = capsys.readouterr().out
    assert "undecided after 9 episodes (e-value 1)" in shown
    assert "1 episodes say nothing: errors, and conditions that are not equal" in shown
    assert "50 % by -" in shown
    assert (tmp_path / "said" / "decision_new-vs-old.svg").exists()


def test_a_margin_and_a_level_may_be_asked_for(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"old": "s" * 300, "new": "s" * 300})
    assert main(["replay-decision", str(run), "--jobs", "new,old", "--margin", "0.1", "--alpha", "0.1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["question"]["margin"], said["question"]["alpha"]) == (0.1, 0.1)
    assert said["decision"]["verdict"] == "no worse"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--comparison: say which one: check, other"),
        (["--comparison", "chek"], "--comparison: there is no 'chek'; did you mean 'check'?"),
        (["--comparison", "check", "--jobs", "new,old"], "give --comparison or --jobs, not both"),
        (["--comparison", "check", "--margin", "0.1"], "--margin: goes with --jobs"),
        (["--comparison", "check", "--alpha", "0.1"], "--alpha: goes with --jobs"),
        (["--jobs", "new"], "--jobs: give NEW,OLD, two names of jobs, got 'new'"),
        (["--jobs", "new,new"], "--jobs: give NEW,OLD, two names of jobs, got 'new,new'"),
        (["--jobs", "new,odl"], "--jobs: there is no job 'odl'; did you mean 'old'?"),
        (["--jobs", "new,old", "--alpha", "2"], "--alpha: must be between 0 and 1, got 2"),
        (["--jobs", "new,old", "--margin", "0"], "--margin: must be between 0 and 1, got 0"),
    ],
)
def test_mistakes_in_the_request_are_one_sentence(options, message, tmp_path, capsys):
    run = run_that_asks(tmp_path, QUESTION, dataclasses.replace(QUESTION, name="other"))
    assert main(["replay-decision", str(run), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_compares_nothing_says_how_to_ask(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"lift": "sf"})
    assert main(["replay-decision", str(run)]) == 2
    assert "--jobs: the job file of this run compares nothing: name two jobs, NEW,OLD" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("uuu", "new does not measure success"),
        ("-ss", "its first episode is not finished"),
        ("s--", "new and old: every episode is an error, or started from other conditions"),
    ],
)
def test_what_cannot_be_compared_has_an_exit_code_of_its_own(new, message, tmp_path, capsys):
    run = run_that_asks(tmp_path, QUESTION, new=new, old="ess")
    assert main(["replay-decision", str(run)]) == 3
    assert message in capsys.readouterr().err
