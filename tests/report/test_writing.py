"""The report's page."""

import base64
import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import scipy
import yaml

from isaaclab_arena.config.schema import PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.evaluation.heartbeat import in_a_thread, keep_writing
from isaaclab_arena.interfaces.episode import EVENTS
from isaaclab_arena.report.jobs import job_on_page
from isaaclab_arena.report.writing import (
    AUTHORS,
    PROGRAM,
    chosen_films,
    films_of_job,
    html_of,
    texts,
    write_report,
)
from isaaclab_arena.report.writing import page_of as page_of_runs
from isaaclab_arena.results.merge import Tables, merge_results, records
from isaaclab_arena.storage.ledger import RunVerification, ServerUsage, write_job_report, write_verification
from tests.analysis.recorded_runs import failed_by, write_all_tables, write_run
from tests.report.reading import Reader, unpacked_numbers, write_films
from tests.results.evidence import commit_lines, report, write_lines
from tests.results.test_summary import write_suites

HOSTILE = "</script><script>alert(1)</script>\"'<!--\u202e\u2028"


def page_of(directory: Path, **jobs: str) -> Reader:
    write_run(directory, jobs)
    write_all_tables(directory)
    return Reader(write_report([directory]).read_text(encoding="utf-8"))


def test_every_number_is_that_of_the_tables(tmp_path: Path):
    page = page_of(tmp_path / "run", lift="sssfte", reach="sf--", place="ttt")
    table, episodes = (pd.read_csv(tmp_path / "run" / f"{name}.csv") for name in ("results", "episodes"))
    for cells, (_, row) in zip(page.cells, table.iterrows(), strict=True):
        rate, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
        assert cells["success_rate"] == f"{rate:.1f} % [{low:.1f}, {high:.1f}]"
        assert cells["successes"] == f"{row['successes']}/{row['failures'] + row['timeouts'] + row['successes']}"
        own = episodes[(episodes["job"] == row["name"]) & (episodes["outcome"] != "error")]
        for name, digits in (("length", 1), ("return", 2)):
            # Student's interval, by another program.
            low, high = scipy.stats.t.interval(0.95, len(own) - 1, own[name].mean(), scipy.stats.sem(own[name]))
            assert cells[f"mean_{name}"] == f"{row[f'mean_{name}']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        assert cells["errors"].split()[0] == str(row["errors"])


def test_a_page_that_is_up_to_date_is_not_written_again_and_keeps_the_time_at_which_it_was_made(tmp_path: Path):
    run = tmp_path / "run"
    write_run(run, {"lift": "ss"})
    elsewhere = write_report([run], tmp_path / "pages" / "mine.html")
    assert elsewhere == tmp_path / "pages" / "mine.html"
    assert not (run / "report.html").exists()
    page = write_report([run])
    made = page.read_text(encoding="utf-8")
    earlier = re.sub("written 20[^<]*", "written 2026-01-31 23:59 UTC", made)
    assert earlier != made
    page.write_text(earlier, encoding="utf-8")
    before = page.stat().st_ino, page.stat().st_mtime_ns
    assert write_report([run]).read_text(encoding="utf-8") == earlier
    assert (page.stat().st_ino, page.stat().st_mtime_ns) == before
    page.write_text(earlier.replace("lift", "left"), encoding="utf-8")
    assert "2026-01-31" not in write_report([run]).read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="not the output of a run"):
        write_report([tmp_path])


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
    assert f"| mine | libero_goal | zero_action | 2 | 12/13 | {mean.replace(' %', '')} |" in page.texts["text-0"]
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
    html = write_report({tmp_path / "run": merged}).read_text(encoding="utf-8")
    assert "new-vs-old: better, after 53 episodes" in html
    assert "the interval that holds at every look" in html


def test_counts_of_one_are_singular_and_only_the_script_of_the_page_may_run(tmp_path: Path):
    html = write_report([write_run(tmp_path / "run", {"lift": "s"})]).read_text(encoding="utf-8")
    assert "<span>1 job, 1 episode</span>" in html
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{allowed}'" in html


def test_a_page_of_failures_says_why_and_never_that_nothing_failed(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "f" * 50})
    html = write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    words = " ".join(re.sub(r"<[^>]+>", "", html).split())
    assert "lift 50 of 50 failed 50 ended without success" in words
    assert "Not every reason has a film: isaaclab-arena film" in words
    write_films(tmp_path / "run", "lift", range(1))
    assert "Not every reason has a film" not in write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert "Nothing failed" not in words
    assert "This task names no reasons" in words
    told = {0: failed_by("almost"), 1: failed_by("dropped")}
    html = write_report([write_run(tmp_path / "told", {"lift": "ff"}, events=told)]).read_text(encoding="utf-8")
    assert f"<dt>almost</dt><dd>{EVENTS['almost']}</dd>" in html
    assert "This task names no reasons" not in html
    assert "<dt>stuck</dt>" not in html


def test_hostile_words_stay_words(tmp_path: Path):
    write_run(tmp_path / "<img src=x onerror=alert(1)>", {"lift": "s"})
    runs = {tmp_path / "<img src=x onerror=alert(1)>": merge_results(tmp_path / "<img src=x onerror=alert(1)>")}
    harmless = page_of_runs(runs, embedded_bytes=0)
    hostile = replace(harmless.jobs[0], episodes={"error": HOSTILE, HOSTILE: 1})
    page = Reader(html_of(replace(harmless, jobs=(hostile,)), tmp_path))
    assert not any(character in page.texts["data"] for character in "<>&\u2028")
    assert page.data["jobs"][0]["error"].startswith("</script>")
    assert page.data["jobs"][0][HOSTILE] == 1
    assert page.tags == Reader(html_of(harmless, tmp_path)).tags
    assert "img" not in page.tags


def test_films_are_inside_of_the_page_and_nothing_is_fetched(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "sf"})
    write_films(tmp_path / "run", "lift", range(2))
    html = write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert 'id="film-0-1-viewport"' in html
    assert "http://" not in html
    assert "https://" not in html


@pytest.mark.parametrize("outcomes", ["", "e", "----"])
def test_a_run_with_nothing_to_show_has_a_page(tmp_path: Path, outcomes: str):
    page = page_of(tmp_path / "run", lift=outcomes or "-")
    assert len(page.cells) == 1


def test_a_job_with_a_policy_server_says_how_busy_it_kept_the_server(tmp_path: Path):
    server = PolicyServerConfig(shared=ServerScope.NODE)
    write_run(tmp_path / "run", {"lift": "sss", "reach": "s"}, policy_server=server)
    asked = {"queries": 10, "entries": 30, "calls": 10.0, "call_entries": 40.0, "queue_s": 0.5, "busy_s": 1.0}
    used = ServerUsage(**asked, seen_s=4.0, seen_busy_s=1.0, seen_entries=30)
    write_job_report(tmp_path / "run" / "lift", report("lift", rank=1, wall_s=5.0, build_s=1.0, policy_server=used))
    write_all_tables(tmp_path / "run")
    timing = pd.read_csv(tmp_path / "run" / "timing.csv")
    assert timing["server_batch_fill"].tolist()[0] == 0.75
    assert timing["server_queries"].isna().tolist() == [False, True]
    # The page is made from the tables that were written.
    html = write_report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert html.count("policy server: offered load") == 1
    assert "batch fill <b>75 %</b>, queueing time <b>50.0 ms</b>, busy share <b>25 %</b>" in html


def run_of(directory: Path, **jobs: str) -> dict[Path, Tables]:
    write_run(directory, jobs)
    return {directory: merge_results(directory)}


def test_a_run_that_goes_on_says_how_far_it_is_and_one_that_is_over_names_what_is_missing(tmp_path: Path):
    run = run_of(tmp_path / "run", lift="ssf--", reach="----")
    page = page_of_runs(run, embedded_bytes=0, running=True, now=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert (page.runs[0]["progress"], page.runs[0]["missing"]) == ("3 of 9 episodes", [])
    assert page.made_at == "2026-01-02 03:04 UTC"
    assert Reader(html_of(page, tmp_path)).data["reloads"]
    over = page_of_runs(run, embedded_bytes=0)
    assert over.runs[0]["progress"] is None
    assert "lacks 2 episodes (3, 4)" in over.runs[0]["missing"][0]
    both = page_of_runs(run | run_of(tmp_path / "new", lift="f"), embedded_bytes=0)
    assert [job.name for job in both.jobs] == ["run: lift", "run: reach", "new: lift"]
    assert both.title == "Zero action on lift object"
    assert [run["name"] for run in both.runs] == ["run", "new"]


@pytest.mark.parametrize(
    ("command_line", "devices", "typed"),
    [
        (("isaaclab_arena.evaluation.eval_runner", "my jobs.json"), ("cpu",), "isaaclab-arena run 'my jobs.json'"),
        (
            ("isaaclab_arena.evaluation.policy_runner", "--name", "a", "reach"),
            ("cpu", "cpu"),
            "isaaclab-arena policy --nproc_per_node 2 --name a reach",
        ),
        (("isaaclab_arena.evaluation.eval_runner", "j"), ("cuda:1", "cuda:3"), "isaaclab-arena run --gpu_ids 1,3 j"),
        # Two machines with two GPUs each, and a cluster, which starts its ranks itself.
        (("isaaclab_arena.evaluation.eval_runner", "j"), ("cuda:0", "cuda:1") * 2, "isaaclab-arena run j"),
        (
            ("isaaclab_arena.evaluation.eval_runner", "--cluster", "ray", "j"),
            ("cpu", "cpu"),
            "isaaclab-arena run --cluster ray j",
        ),
        (("my_program.py", "1"), ("cpu",), "my_program.py 1"),
    ],
)
def test_the_command_of_a_page_is_one_to_type(tmp_path: Path, command_line, devices, typed):
    ((directory, merged),) = run_of(tmp_path / "run", lift="s").items()
    plan = replace(merged.plan, command_line=command_line, devices=devices, world_size=len(devices))
    facts = dict(page_of_runs({directory: replace(merged, plan=plan)}, embedded_bytes=0).runs[0]["facts"])
    assert facts["command"] == typed


def test_what_was_verified_is_told_until_the_run_changes(tmp_path: Path):
    run, directory = run_of(tmp_path / "run", lift="ssf"), tmp_path / "run"
    found = RunVerification(
        verified_at="2026-01-02T03:04:05.000+00:00",
        sources=run[directory].sources,
        num_episodes=3,
        problems=("demo_2 is damaged",),
        episodes=(),
        is_sound=False,
    )
    assert page_of_runs(run, embedded_bytes=0).runs[0]["verified"] is None
    write_verification(directory, found)
    html = html_of(page_of_runs(run, embedded_bytes=0), tmp_path)
    assert html.count("2026-01-02 03:04 UTC: defects in the files: demo_2 is damaged; no episode ran again.") == 2
    assert "No episode ended with an error, and none is missing." not in html
    write_lines(directory, commit_lines("s", first=3))
    (changed,) = page_of_runs(run_of_existing(directory), embedded_bytes=0).runs
    assert changed["verified"].endswith("The run has changed since.")
    assert not changed["is_unsound"]


def test_films_that_have_no_room_are_found_by_their_path(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "sf"})
    write_films(tmp_path / "run", "lift", range(2))
    page = page_of_runs(run_of_existing(tmp_path / "run"), embedded_bytes=400)
    films = Reader(html_of(page, tmp_path / "run")).data["films"]
    assert [film["address"] for film in films] == ["lift/videos/viewport-env0-episode-0.mp4", None]


def run_of_existing(directory: Path) -> dict[Path, Tables]:
    return {directory: merge_results(directory)}


def test_one_film_of_each_job_goes_in_first_then_those_that_show_a_reason_and_other_failures(tmp_path: Path):
    write_films(tmp_path, "lift", range(6))
    write_films(tmp_path, "reach", range(2))
    (tmp_path / "lift" / "videos" / "notes.txt").write_text("no film")
    lift, reach = (films_of_job(tmp_path, name, job=job) for job, name in enumerate(("lift", "reach")))
    assert [film.episode_index for film in lift] == list(range(6))
    assert films_of_job(tmp_path, "push", job=2) == []
    chosen = chosen_films(lift + reach, {0: frozenset({2, 3}), 1: frozenset()}, budget_bytes=3 * 400)
    assert [(film.job, film.episode_index) for film in chosen if film.embedded] == [(0, 2), (0, 3), (1, 0)]
    assert all(film.poster for film in chosen)
    failed, explaining = {0: frozenset(range(1, 6))}, {0: frozenset({3, 4, 5})}
    chosen = chosen_films(lift, failed, budget_bytes=4 * 400, explaining=explaining)
    assert [film.episode_index for film in chosen if film.embedded] == [1, 3, 4, 5]
    film, *_ = chosen_films(lift, {}, budget_bytes=0)
    assert not film.embedded
    assert film.address(tmp_path) == "lift/videos/viewport-env0-episode-0.mp4"
    assert film.address(tmp_path / "else where") == "../lift/videos/viewport-env0-episode-0.mp4"


class FakeTime:
    """Pauses without waiting, and pages of a stated cost."""

    def __init__(self, costs_s: list[float]) -> None:
        self.costs_s = costs_s
        self.cost_s = 0.0
        self.pauses_s: list[float] = []
        self.num_pages = 0

    def pause(self, pause_s: float) -> bool:
        self.pauses_s.append(pause_s)
        return self.num_pages == len(self.costs_s)

    def write(self) -> None:
        self.cost_s += self.costs_s[self.num_pages]
        self.num_pages += 1
        if self.cost_s > 100:
            raise ArenaError("the disk is full")

    def goes_on(self) -> None:
        keep_writing(self.write, self.pause, cost_clock=lambda: self.cost_s)


def test_a_page_is_written_every_thirty_seconds():
    time = FakeTime([0.1, 0.2, 0.05])
    time.goes_on()
    assert time.num_pages == 3
    assert time.pauses_s == [30.0, 30.0, 30.0, 30.0]


def test_pages_that_cost_much_come_more_rarely_so_that_they_take_one_percent():
    time = FakeTime([0.1, 2.0, 2.0])
    time.goes_on()
    assert time.pauses_s[2:] == pytest.approx([200.0, 200.0])
    assert sum(time.costs_s) <= 0.01 * sum(time.pauses_s)


def test_a_page_that_cannot_be_written_ends_nothing():
    time = FakeTime([200.0, 0.1])
    time.goes_on()
    assert time.num_pages == 2


def test_closing_does_not_wait_for_the_next_page():
    pages = []
    with in_a_thread(lambda pause: keep_writing(lambda: pages.append(1), pause), name="report"):
        pass
    assert pages == []


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
