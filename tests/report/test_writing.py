import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.config.schema import PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.report import page as pages
from isaaclab_arena.report.writing import ReportedRun, html_of, write_page, write_report
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.storage.reports import ServerUsage, write_job_report
from tests.analysis.recorded_runs import write_all_tables, write_run
from tests.report.reading import Reader, unpacked_numbers
from tests.report.test_films import write_films
from tests.results.evidence import report
from tests.results.test_suites import write_suites

HOSTILE = "</script><script>alert(1)</script>\"'<!--\u202e\u2028"


def page_of(directory: Path, **jobs: str) -> Reader:
    write_run(directory, jobs)
    write_all_tables(directory)
    return Reader(write_report([directory]).read_text(encoding="utf-8"))


def test_every_number_is_that_of_the_tables(tmp_path: Path):
    page = page_of(tmp_path / "run", lift="sssfte", reach="sf--", place="ttt")
    table = pd.read_csv(tmp_path / "run" / "results.csv")
    for cells, (_, row) in zip(page.cells, table.iterrows(), strict=True):
        rate, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
        assert cells["success_rate"] == f"{rate:.1f} % [{low:.1f}, {high:.1f}]"
        assert cells["successes"] == f"{row['successes']}/{row['failures'] + row['timeouts'] + row['successes']}"
        assert cells["mean_length"] == f"{row['mean_length']:.1f}"
        assert cells["mean_return"] == f"{row['mean_return']:.2f}"
        assert cells["errors"].split()[0] == str(row["errors"])


def test_a_page_that_is_up_to_date_keeps_the_time_at_which_it_was_made(tmp_path: Path):
    run = tmp_path / "run"
    write_run(run, {"lift": "ss"})
    write_all_tables(run)
    made = write_report([run]).read_text(encoding="utf-8")
    earlier = re.sub("page of 20[^<]*", "page of 2026-01-31 23:59 UTC", made)
    assert earlier != made
    page = run / "report.html"
    page.write_text(earlier, encoding="utf-8")
    assert write_report([run]).read_text(encoding="utf-8") == earlier
    page.write_text(earlier.replace("lift", "left"), encoding="utf-8")
    assert "2026-01-31" not in write_report([run]).read_text(encoding="utf-8")


def test_every_number_of_a_suite_is_that_of_its_table(tmp_path: Path):
    write_suites(tmp_path, {"mine-0": "ssssssssse", "mine-1": "sssf", "other-0": "----", "other-1": "sf", "lift": "s"})
    write_all_tables(tmp_path)
    page = Reader(write_report([tmp_path]).read_text(encoding="utf-8"))
    mine, other = pd.read_csv(tmp_path / "suites.csv").to_dict(orient="records")
    mean, pooled = (
        "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * mine[f"{kind}_{part}"] for part in ("rate", "low", "high")))
        for kind in ("mean", "pooled")
    )
    assert page.suites == [
        {"mean_rate": mean, "pooled_rate": f"{pooled} {mine['successes']}/{mine['scored']}"},
        {"mean_rate": "-", "pooled_rate": "50.0 % [9.5, 90.5] 1/2"},
    ]
    said = f"mean of tasks {mean}; 12 of 13 episodes, {pooled}; 1 error"
    assert page.texts["suite-sentence-0"] == f"mine (libero_goal, 2 tasks, zero_action): {said}"
    assert page.texts["suite-sentence-1"].endswith("; 4 missing")
    assert f"| mine | libero_goal | zero_action | 2 | 14 | {mean.replace(' %', '')} |" in page.texts["text-0"]
    assert other["status"] == "interrupted"


def test_every_episode_of_the_script_is_that_of_the_tables(tmp_path: Path):
    data = page_of(tmp_path / "run", lift="sssfte", reach="sf").data
    table = pd.read_csv(tmp_path / "run" / "episodes.csv")
    for job in data["jobs"]:
        own = table[table["job"] == job["name"]]
        assert job["count"] == len(own)
        assert unpacked_numbers(job["length"], len(own)).tolist() == own["length"].tolist()
        decimals = job["return"]["decimals"]
        found = unpacked_numbers(job["return"], len(own))
        assert [f"{each:.{decimals}f}" for each in found] == [f"{each:.{decimals}f}" for each in own["return"]]


def test_a_job_that_was_decided_says_so_and_which_kind_its_interval_is(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "sssf"})
    merged = merge_results(tmp_path / "run")
    asked = {"decision": "new-vs-old: better", "decided_at": 53, "interval_kind": "anytime"}
    merged = replace(merged, jobs=merged.jobs.assign(**asked))
    html = write_page([ReportedRun(directory=tmp_path / "run", merged=merged)]).read_text(encoding="utf-8")
    assert "new-vs-old: better, after 53 episodes" in html
    assert "the interval that holds at every look" in html


def test_hostile_words_stay_words(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "s"})
    run = ReportedRun(directory=tmp_path / "run", merged=merge_results(tmp_path / "run"))
    harmless = pages.page_of([run], embedded_bytes=0)
    hostile = replace(harmless.jobs[0], episodes={"error": HOSTILE, HOSTILE: 1})
    page = Reader(html_of(replace(harmless, jobs=(hostile,)), tmp_path))
    assert not any(character in page.texts["data"] for character in "<>&\u2028")
    assert page.data["jobs"][0]["error"].startswith("</script>")
    assert page.data["jobs"][0][HOSTILE] == 1
    assert page.tags == Reader(html_of(harmless, tmp_path)).tags


def test_a_hostile_directory_makes_no_element(tmp_path: Path):
    directory = tmp_path / "<img src=x onerror=alert(1)>"
    page = page_of(directory, lift="s")
    assert "img" not in page.tags


def test_films_are_inside_of_the_page_and_nothing_is_fetched(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "sf"})
    write_films(tmp_path / "run", "lift", range(2))
    html = write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert 'id="film-0-1-viewport"' in html
    assert "http://" not in html
    assert "https://" not in html


def test_a_page_that_lies_there_already_is_not_written_again(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "s"})
    path = write_report([tmp_path / "run"])
    before = path.stat().st_ino, path.stat().st_mtime_ns
    write_report([tmp_path / "run"])
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_a_page_is_written_where_it_is_wanted_and_nowhere_else(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "s"})
    path = write_report([tmp_path / "run"], tmp_path / "pages" / "mine.html")
    assert path == tmp_path / "pages" / "mine.html"
    assert not (tmp_path / "run" / "report.html").exists()


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="not the output of a run"):
        write_report([tmp_path])


@pytest.mark.parametrize("outcomes", ["", "e", "----"])
def test_a_run_with_nothing_to_show_has_a_page(tmp_path: Path, outcomes: str):
    page = page_of(tmp_path / "run", lift=outcomes or "-")
    assert len(page.cells) == 1


def test_a_job_with_a_policy_server_says_how_busy_it_kept_the_server(tmp_path: Path):
    server = PolicyServerConfig(shared=ServerScope.NODE)
    write_run(tmp_path / "run", {"lift": "sss", "reach": "s"}, policy_server=server)
    used = ServerUsage(
        queries=10,
        entries=30,
        calls=10.0,
        call_entries=40.0,
        queue_s=0.5,
        busy_s=1.0,
        seen_s=4.0,
        seen_busy_s=1.0,
        seen_entries=30,
    )
    write_job_report(tmp_path / "run" / "lift", report("lift", rank=1, wall_s=5.0, build_s=1.0, policy_server=used))
    write_all_tables(tmp_path / "run")
    timing = pd.read_csv(tmp_path / "run" / "timing.csv")
    assert timing["server_batch_fill"].tolist()[0] == 0.75
    assert timing["server_queries"].isna().tolist() == [False, True]
    # The page is made from the tables that were written.
    html = write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert html.count("policy server: offered load") == 1
    assert "batch fill <b>75 %</b>, queueing time <b>50.0 ms</b>, busy share <b>25 %</b>" in html
