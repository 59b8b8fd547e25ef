from pathlib import Path

import yaml

from isaaclab_arena.report.jobs import job_on_page
from isaaclab_arena.report.writing import AUTHORS, PROGRAM, texts
from isaaclab_arena.results.merge import merge_results, records
from tests.analysis.recorded_runs import write_run

ROOT = Path(__file__).parents[2]


def test_the_table_can_be_pasted_in_three_ways(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "run", {"lift_cube": "sssf"}))
    job = job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift_cube")
    found = dict(texts([job], [merged.plan]))
    assert "| lift_cube |" in found["Markdown"]
    assert "75.0 [30.1, 95.4]" in found["Markdown"]
    assert r"lift\_cube & " in found["LaTeX"]
    assert merged.plan.run_id in found["BibTeX"]
    assert found["BibTeX"].startswith("@software{")


def test_a_rate_that_is_pasted_says_how_many_conditions_it_has_where_some_repeat(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "run", {"lift_cube": "sssf"}, starts=2))
    job = job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift_cube")
    found = dict(texts([job], [merged.plan]))
    assert all("3/4 (2 different conditions)" in found[name] for name in ("Markdown", "LaTeX"))


def test_a_job_without_a_scored_episode_has_a_dash_and_no_share_of_none(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "run", {"lift": "---", "reach": "eee"}))
    found = (merged.episodes_of[row["name"]] for row in merged.rows)
    jobs = [job_on_page(row, own, run=0, label=row["name"]) for row, own in zip(merged.rows, found, strict=True)]
    assert [line.split(" | ")[3:5] for line in dict(texts(jobs, []))["Markdown"].splitlines()[2:]] == [["-", "-"]] * 2


def test_what_is_cited_is_what_the_citation_file_names():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert said["title"] == PROGRAM
    assert said["authors"] == [{"name": AUTHORS}]
