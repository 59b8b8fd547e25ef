import json

import pytest

from isaaclab_arena.cli.main import main
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


def test_what_cannot_be_compared_has_an_exit_code_of_its_own(tmp_path, capsys):
    assert compared(tmp_path, "ss-", "sss") == 3
    assert "has 1 of 3 episodes to go" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alpha", "1.5"], "--alpha: must be between 0 and 1, got 1.5"),
        (["--margin", "0"], "--margin: must be between 0 and 1, got 0"),
        (["--map", "lift"], "--map: give OLD=NEW, two names of jobs, got 'lift'"),
        (
            ["--baseline", "lift"],
            "or one run and its job that is the baseline",
        ),
        (["--github_summary"], "--github_summary: needs GITHUB_STEP_SUMMARY, which GitHub sets"),
    ],
)
def test_mistakes_in_the_request_are_one_sentence(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert compared(tmp_path, "ss", "ss", *options) == 2
    assert message in capsys.readouterr().err


def test_jobs_of_one_run_are_compared_with_a_baseline(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"old": "f" * 8, "new": "s" * 8})
    assert main(["compare", str(run), "--baseline", "old"]) == 0
    assert "new / old" in capsys.readouterr().out


def test_a_program_reads_json(tmp_path, capsys):
    assert compared(tmp_path, "s" * 8, "f" * 8, "--json", "--output_dir", str(tmp_path / "said")) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "better"
    assert (tmp_path / "said" / "comparison.csv").exists()


@pytest.mark.parametrize("option", ["--github_summary", "--github-summary"])
def test_a_workflow_gets_the_tables(option, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert compared(tmp_path, "s" * 8, "f" * 8, option) == 0
    assert "| lift | 8 | 100.0 | 0.0 |" in (tmp_path / "summary.md").read_text()
