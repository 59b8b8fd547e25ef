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
from isaaclab_arena.report.writing import AUTHORS, PROGRAM, chosen_films, films_of_job, html_of, texts, write_report
from isaaclab_arena.report.writing import page_of as page_of_runs
from isaaclab_arena.results.merge import Tables, merge_results
from isaaclab_arena.storage.ledger import RunVerification, ServerUsage, write_job_report, write_verification
from tests.analysis.recorded_runs import failed_by, write_all_tables, write_run
from tests.report.reading import Reader, unpacked_numbers, words_of, write_films
from tests.results.evidence import commit_lines, report, write_lines
from tests.results.test_summary import write_suites

HOSTILE = "</script><script>alert(1)</script>\"'<!--\u202e\u2028"


def read_page(*runs: Path) -> Reader:
    return Reader(write_report(runs).read_text(encoding="utf-8"))


def page_of(directory: Path, **jobs: str) -> Reader:
    write_all_tables(write_run(directory, jobs))
    return read_page(directory)


def merged_run(directory: Path, **jobs: str) -> dict[Path, Tables]:
    """Return a run, which is written where jobs are given."""
    return {directory: merge_results(write_run(directory, jobs) if jobs else directory)}


def test_every_number_is_that_of_the_tables(tmp_path: Path):
    page = page_of(tmp_path / "run", lift="sssfte", reach="sf--", place="ttt", none="----", error="e")
    table, episodes = (pd.read_csv(tmp_path / "run" / f"{name}.csv") for name in ("results", "episodes"))
    assert len(page.cells) == 5
    for cells, (_, row) in zip(page.cells[:3], table.head(3).iterrows(), strict=True):
        rate, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
        assert cells["success_rate"] == f"{rate:.1f} % [{low:.1f}, {high:.1f}]"
        assert (
            cells["successes"] == f"{row['successes']:.0f}/{row['failures'] + row['timeouts'] + row['successes']:.0f}"
        )
        own = episodes[(episodes["job"] == row["name"]) & (episodes["outcome"] != "error")]
        for name, digits in (("length", 1), ("return", 2)):
            # Student's interval, by another program.
            low, high = scipy.stats.t.interval(0.95, len(own) - 1, own[name].mean(), scipy.stats.sem(own[name]))
            assert cells[f"mean_{name}"] == f"{row[f'mean_{name}']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        assert cells["errors"].split()[0] == str(row["errors"])


def test_a_page_that_is_up_to_date_is_not_written_again_and_keeps_the_time_at_which_it_was_made(tmp_path: Path):
    run, elsewhere = write_run(tmp_path / "run", {"lift": "ss"}), tmp_path / "pages" / "mine.html"
    assert write_report([run], elsewhere) == elsewhere
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
    with pytest.raises(ConfigError, match="not the output"):
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
    run = write_run(tmp_path / "run", {"lift": "f" * 50})
    words = words_of(write_report([run]).read_text(encoding="utf-8"))
    for expected in (
        "lift 50 of 50 failed 50 ended without success",
        "Not every reason has a film",
        "names no reasons",
    ):
        assert expected in words
    assert "Nothing failed" not in words
    write_films(run, "lift", range(1))
    assert "Not every reason has a film" not in write_report([run]).read_text(encoding="utf-8")
    told = {0: failed_by("almost"), 1: failed_by("dropped")}
    html = write_report([write_run(tmp_path / "told", {"lift": "ff"}, events=told)]).read_text(encoding="utf-8")
    assert f"<dt>almost</dt><dd>{EVENTS['almost']}</dd>" in html
    assert "names no reasons" not in html
    assert "<dt>stuck</dt>" not in html


def test_hostile_words_stay_words(tmp_path: Path):
    harmless = page_of_runs(merged_run(tmp_path / "<img src=x onerror=alert(1)>", lift="s"), embedded_bytes=0)
    hostile = replace(harmless.jobs[0], episodes={"error": HOSTILE, HOSTILE: 1})
    page = Reader(html_of(replace(harmless, jobs=(hostile,)), tmp_path))
    assert not any(character in page.texts["data"] for character in "<>&\u2028")
    assert page.data["jobs"][0]["error"].startswith("</script>")
    assert page.data["jobs"][0][HOSTILE] == 1
    assert page.tags == Reader(html_of(harmless, tmp_path)).tags
    assert "img" not in page.tags


def test_films_are_inside_of_the_page_and_nothing_is_fetched(tmp_path: Path):
    run = write_run(tmp_path / "run", {"lift": "sf"})
    write_films(run, "lift", range(2))
    html = write_report([run]).read_text(encoding="utf-8")
    assert 'id="film-0-1-viewport"' in html
    assert "http://" not in html
    assert "https://" not in html


def test_a_job_with_a_policy_server_says_how_busy_it_kept_the_server(tmp_path: Path):
    server = PolicyServerConfig(shared=ServerScope.NODE)
    run = write_run(tmp_path / "run", {"lift": "sss", "reach": "s"}, policy_server=server)
    asked = {"queries": 10, "entries": 30, "calls": 10.0, "call_entries": 40.0, "queue_s": 0.5, "busy_s": 1.0}
    used = ServerUsage(**asked, seen_s=4.0, seen_busy_s=1.0, seen_entries=30)
    write_job_report(run / "lift", report("lift", rank=1, wall_s=5.0, build_s=1.0, policy_server=used))
    write_all_tables(run)
    timing = pd.read_csv(run / "timing.csv")
    assert timing["server_batch_fill"].tolist()[0] == 0.75
    assert timing["server_queries"].isna().tolist() == [False, True]
    # The page is made from the tables that were written.
    html = write_report([run]).read_text(encoding="utf-8")
    assert html.count("policy server: offered load") == 1
    assert "batch fill <b>75 %</b>, queueing time <b>50.0 ms</b>, busy share <b>25 %</b>" in html


def test_a_run_that_goes_on_says_how_far_it_is_and_one_that_is_over_names_what_is_missing(tmp_path: Path):
    run = merged_run(tmp_path / "run", lift="ssf--", reach="----")
    page = page_of_runs(run, embedded_bytes=0, running=True, now=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert (page.runs[0]["progress"], page.runs[0]["missing"]) == ("3 of 9 episodes", [])
    assert page.made_at == "2026-01-02 03:04 UTC"
    assert Reader(html_of(page, tmp_path)).data["reloads"]
    over = page_of_runs(run, embedded_bytes=0)
    assert over.runs[0]["progress"] is None
    assert "lacks 2 episodes (3, 4)" in over.runs[0]["missing"][0]
    both = page_of_runs(run | merged_run(tmp_path / "new", lift="f"), embedded_bytes=0)
    assert [job.name for job in both.jobs] == ["run: lift", "run: reach", "new: lift"]
    assert both.title == "Zero action on lift object"
    assert [run["name"] for run in both.runs] == ["run", "new"]


EVAL = "isaaclab_arena.evaluation.eval_runner"
POLICY = "isaaclab_arena.evaluation.policy_runner"
COMMANDS = {
    "isaaclab-arena run 'my jobs.json'": ((EVAL, "my jobs.json"), ("cpu",)),
    "isaaclab-arena policy --nproc_per_node 2 --name a reach": ((POLICY, "--name", "a", "reach"), ("cpu", "cpu")),
    "isaaclab-arena run --gpu_ids 1,3 j": ((EVAL, "j"), ("cuda:1", "cuda:3")),
    # Two machines with two GPUs each, and a cluster, which starts its ranks itself.
    "isaaclab-arena run j": ((EVAL, "j"), ("cuda:0", "cuda:1") * 2),
    "isaaclab-arena run --cluster ray j": ((EVAL, "--cluster", "ray", "j"), ("cpu", "cpu")),
    "my_program.py 1": (("my_program.py", "1"), ("cpu",)),
}


@pytest.mark.parametrize("typed", COMMANDS)
def test_the_command_of_a_page_is_one_to_type(tmp_path: Path, typed: str):
    command_line, devices = COMMANDS[typed]
    ((directory, merged),) = merged_run(tmp_path / "run", lift="s").items()
    plan = replace(merged.plan, command_line=command_line, devices=devices, world_size=len(devices))
    facts = dict(page_of_runs({directory: replace(merged, plan=plan)}, embedded_bytes=0).runs[0]["facts"])
    assert facts["command"] == typed


def test_what_was_verified_is_told_until_the_run_changes(tmp_path: Path):
    run, directory = merged_run(tmp_path / "run", lift="ssf"), tmp_path / "run"
    said = {"verified_at": "2026-01-02T03:04:05.000+00:00", "problems": ("demo_2 is damaged",), "episodes": ()}
    found = RunVerification(sources=run[directory].sources, num_episodes=3, is_sound=False, **said)
    assert page_of_runs(run, embedded_bytes=0).runs[0]["verified"] is None
    write_verification(directory, found)
    html = html_of(page_of_runs(run, embedded_bytes=0), tmp_path)
    assert html.count("2026-01-02 03:04 UTC: defects in the files: demo_2 is damaged") == 2
    assert "and none is missing" not in html
    write_lines(directory, commit_lines("s", first=3))
    (changed,) = page_of_runs(merged_run(directory), embedded_bytes=0).runs
    assert changed["verified"].endswith("The run has changed since.")
    assert not changed["is_unsound"]


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


@pytest.mark.parametrize(
    ("costs_s", "pauses_s"),
    [
        ([0.1, 0.2, 0.05], [30.0, 30.0, 30.0, 30.0]),
        # Pages that cost much come more rarely, so that they take one percent.
        ([0.1, 2.0, 2.0], [30.0, 30.0, 200.0, 200.0]),
        # A page that cannot be written ends nothing.
        ([200.0, 0.1], [30.0, 20_000.0, 30.0]),
    ],
)
def test_a_page_is_written_every_thirty_seconds_unless_it_costs_much(costs_s, pauses_s):
    written, paused = [], []

    def write() -> None:
        written.append(costs_s[len(written)])
        if written[-1] > 100:
            raise ArenaError("disk full")

    def pause(pause_s: float) -> bool:
        paused.append(pause_s)
        return len(written) == len(costs_s)

    keep_writing(write, pause, cost_clock=lambda: sum(written))
    assert (written, paused) == (costs_s, pytest.approx(pauses_s))


def test_closing_does_not_wait_for_the_next_page():
    pages = []
    with in_a_thread(lambda pause: keep_writing(lambda: pages.append(1), pause), name="report"):
        pass
    assert pages == []


def pasted(merged: Tables) -> dict[str, str]:
    jobs = [job_on_page(row, merged.episodes_of[row["name"]], run=0, label=row["name"]) for row in merged.rows]
    return dict(texts(jobs, [merged.plan]))


def test_the_table_can_be_pasted_in_three_ways(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "run", {"lift_cube": "sssf", "none": "---", "error": "eee"}))
    found = pasted(merged)
    rows = [line.split(" | ") for line in found["Markdown"].splitlines()[2:]]
    assert (rows[0][0], rows[0][4]) == ("| lift_cube", "75.0 [30.1, 95.4]")
    assert [row[3:5] for row in rows[1:]] == [["-", "-"]] * 2
    assert r"lift\_cube & " in found["LaTeX"]
    assert merged.plan.run_id in found["BibTeX"]
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert found["BibTeX"].startswith("@software{")
    assert (cited["title"], cited["authors"]) == (PROGRAM, [{"name": AUTHORS}])
    found = pasted(merge_results(write_run(tmp_path / "repeats", {"lift_cube": "sssf"}, starts=2)))
    assert all("3/4 (2 different conditions)" in found[name] for name in ("Markdown", "LaTeX"))
