from pathlib import Path

from isaaclab_arena.report.writing import chosen_films, films_of_job
from isaaclab_arena.storage.layout import poster_file


def write_films(directory: Path, job: str, episodes: range, size: int = 300) -> None:
    for episode in episodes:
        path = directory / job / "videos" / f"viewport-env0-episode-{episode}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"v" * size)
        poster_file(path).write_bytes(b"p" * 30)


def test_films_are_found_by_episode_and_other_files_are_not(tmp_path: Path):
    write_films(tmp_path, "lift", range(3))
    (tmp_path / "lift" / "videos" / "notes.txt").write_text("no film")
    assert [film.episode_index for film in films_of_job(tmp_path, "lift", job=0)] == [0, 1, 2]
    assert films_of_job(tmp_path, "reach", job=1) == []


def test_one_film_of_each_job_goes_in_first_and_failures_before_successes(tmp_path: Path):
    write_films(tmp_path, "lift", range(4))
    write_films(tmp_path, "reach", range(2))
    films = films_of_job(tmp_path, "lift", job=0) + films_of_job(tmp_path, "reach", job=1)
    chosen = chosen_films(films, {0: frozenset({2, 3}), 1: frozenset()}, budget_bytes=3 * 400)
    assert [(film.job, film.episode_index) for film in chosen if film.embedded] == [(0, 2), (0, 3), (1, 0)]
    assert all(film.poster for film in chosen)


def test_films_that_show_a_reason_go_in_before_other_failures(tmp_path: Path):
    write_films(tmp_path, "lift", range(6))
    films, failed = films_of_job(tmp_path, "lift", job=0), {0: frozenset(range(1, 6))}
    chosen = chosen_films(films, failed, budget_bytes=4 * 400, explaining={0: frozenset({3, 4, 5})})
    assert [film.episode_index for film in chosen if film.embedded] == [1, 3, 4, 5]


def test_a_budget_of_nothing_leaves_paths_that_the_page_finds(tmp_path: Path):
    write_films(tmp_path, "lift", range(1))
    (film,) = chosen_films(films_of_job(tmp_path, "lift", job=0), {}, budget_bytes=0)
    assert not film.embedded
    assert film.address(tmp_path) == "lift/videos/viewport-env0-episode-0.mp4"
    assert film.address(tmp_path / "else where") == "../lift/videos/viewport-env0-episode-0.mp4"
