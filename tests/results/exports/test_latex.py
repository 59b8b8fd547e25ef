"""Tests of the tables that a paper includes."""

import json

from isaaclab_arena.results.exports import export_latex
from isaaclab_arena.results.merge import merge_results, write_tables
from tests.results.test_summary import write_suites


def test_a_paper_gets_the_table_of_jobs_and_that_of_suites(tmp_path):
    run, paper = tmp_path / "run", tmp_path / "paper"
    run.mkdir()
    write_suites(run, {"mine_a-0": "sssf", "mine_a-1": "ss", "lift": "s"})
    write_tables(run, merge_results(run))
    assert [*export_latex(run, paper)] == [str(paper / "results.tex"), str(paper / "suites.tex")]
    jobs, suites = ((paper / f"{name}.tex").read_text().splitlines() for name in ("results", "suites"))
    assert jobs[0] == r"% \usepackage{booktabs}"
    assert jobs[2] == r"\toprule"
    row = next(row for row in json.loads((run / "results.json").read_text())["jobs"] if row["name"] == "mine_a-0")
    assert f"75.0 [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]" in jobs[5]
    assert jobs[5].startswith(r"mine\_a-0 & ")
    assert suites[5].startswith(r"mine\_a & ")
    assert r"success \% [95 \%]" in jobs[3]
