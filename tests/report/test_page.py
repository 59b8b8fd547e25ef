from datetime import UTC, datetime
from pathlib import Path

from isaaclab_arena.report.writing import html_of, page_of
from isaaclab_arena.results.merge import Tables, merge_results
from isaaclab_arena.storage.reports import RunVerification, write_verification
from tests.analysis.recorded_runs import write_run
from tests.report.reading import Reader
from tests.report.test_films import write_films
from tests.results.evidence import commit_lines, write_lines


def run_of(directory: Path, **jobs: str) -> dict[Path, Tables]:
    write_run(directory, jobs)
    return {directory: merge_results(directory)}


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path: Path):
    run = run_of(tmp_path / "run", lift="ssf--", reach="----")
    page = page_of(run, embedded_bytes=0, running=True, now=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert page.runs[0].progress == "3 of 9"
    assert page.runs[0].missing == ()
    assert page.made_at == "2026-01-02 03:04 UTC"
    assert Reader(html_of(page, tmp_path)).data["reloads"]


def test_a_run_that_is_over_names_what_is_missing(tmp_path: Path):
    page = page_of(run_of(tmp_path / "run", lift="ssf--"), embedded_bytes=0)
    assert page.runs[0].progress is None
    assert "lacks 2 episodes (3, 4)" in page.runs[0].missing[0]


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
    assert page_of(run, embedded_bytes=0).runs[0].verified is None
    write_verification(directory, found)
    html = html_of(page_of(run, embedded_bytes=0), tmp_path)
    assert html.count("2026-01-02 03:04 UTC: wrong with the files: demo_2 is damaged; no episode ran again.") == 2
    assert "Nothing failed, and nothing is missing." not in html
    write_lines(directory, commit_lines("s", first=3))
    (changed,) = page_of(run_of_existing(directory), embedded_bytes=0).runs
    assert changed.verified is not None
    assert changed.verified.endswith("The run has changed since.")
    assert not changed.is_unsound


def test_jobs_of_several_runs_are_named_after_them(tmp_path: Path):
    page = page_of(run_of(tmp_path / "old", lift="s") | run_of(tmp_path / "new", lift="f"), embedded_bytes=0)
    assert [job.name for job in page.jobs] == ["old: lift", "new: lift"]
    assert page.title == "old, new"


def test_films_that_have_no_room_are_found_by_their_path(tmp_path: Path):
    write_run(tmp_path / "run", {"lift": "sf"})
    write_films(tmp_path / "run", "lift", range(2))
    page = page_of(run_of_existing(tmp_path / "run"), embedded_bytes=400)
    films = Reader(html_of(page, tmp_path / "run")).data["films"]
    assert [film["address"] for film in films] == ["lift/videos/viewport-env0-episode-0.mp4", None]


def run_of_existing(directory: Path) -> dict[Path, Tables]:
    return {directory: merge_results(directory)}
