import json

import pandas as pd

from isaaclab_arena.analysis.comparison import ComparisonReport, Question, compare_runs
from isaaclab_arena.analysis.comparison_files import markdown, write_comparison
from tests.analysis.recorded_runs import run_of


def report_of(tmp_path, name: str = "lift") -> ComparisonReport:
    candidate = run_of(tmp_path / "candidate", {name: "s" * 8})
    return compare_runs(candidate, run_of(tmp_path / "baseline", {name: "f" * 6 + "ss"}), Question())


def test_four_files_are_written_and_written_over(tmp_path):
    report = report_of(tmp_path)
    write_comparison(tmp_path / "new", report)
    paths = write_comparison(tmp_path / "new", report)
    assert sorted(path.name for path in paths) == [
        "comparison.csv",
        "comparison.json",
        "comparison.md",
        "comparison.tex",
    ]


def test_the_json_file_holds_every_figure(tmp_path):
    write_comparison(tmp_path, report_of(tmp_path))
    document = json.loads((tmp_path / "comparison.json").read_text())
    (task,) = document["tasks"]
    assert document["verdict"] == task["verdict"] == "better"
    assert task["counts"] == {"both": 2, "only_first": 6, "only_second": 0, "neither": 0}
    assert task["exact_p"] == 0.03125
    assert task["discordant_episodes"] == {"candidate": [0, 1, 2, 3, 4, 5], "baseline": []}
    assert task["measures"]["length"]["mean"] == 0.0
    assert "events" not in task


def test_the_csv_file_holds_numbers(tmp_path):
    write_comparison(tmp_path, report_of(tmp_path))
    (row,) = pd.read_csv(tmp_path / "comparison.csv").to_dict(orient="records")
    assert (row["pairs"], row["only_first"], row["difference"], row["verdict"]) == (8, 6, 0.75, "better")


def test_markdown_begins_with_the_verdict(tmp_path):
    text = markdown(report_of(tmp_path))
    assert text.startswith("**better**\n\n| task | pairs |")
    assert "| lift | 8 | 100.0 | 25.0 |" in text


def test_names_are_spelled_so_that_latex_takes_them(tmp_path):
    write_comparison(tmp_path, report_of(tmp_path, "lift_50%"))
    text = (tmp_path / "comparison.tex").read_text()
    assert r"lift\_50\% & 8 & 100.0" in text
    assert text.count(r"\\") == 2
