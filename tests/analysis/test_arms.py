import numpy as np
import pytest

from isaaclab_arena.analysis.arms import named_arm, read_run
from isaaclab_arena.errors import ConfigError
from tests.analysis.recorded_runs import arm_of, failed_by, run_of, write_all_tables, write_run
from tests.evaluation.contests import ASKED, contest, new_and_old


def test_a_run_is_read_from_its_tables_and_without_them_alike(tmp_path):
    directory = write_run(tmp_path / "run", {"lift": "sfes", "reach": "ff"}, events={1: failed_by("dropped")})
    without = read_run(directory).arms
    write_all_tables(directory)
    from_tables = read_run(directory).arms
    assert list(from_tables) == list(without) == ["lift", "reach"]
    for name, arm in from_tables.items():
        for column, values in vars(arm.episodes).items():
            np.testing.assert_array_equal(values, getattr(without[name].episodes, column))
        assert arm.planned == without[name].planned


def test_tables_that_are_damaged_are_not_read(tmp_path):
    directory = write_run(tmp_path / "run", {"lift": "sf"})
    write_all_tables(directory)
    (directory / "episodes.parquet").write_bytes(b"PAR1 no longer")
    assert read_run(directory).arms["lift"].episodes.success.tolist() == [1.0, 0.0]


def test_tables_that_are_old_are_not_read(tmp_path):
    directory = write_run(tmp_path / "run", {"lift": "sf"})
    write_all_tables(directory)
    commits = directory / "lift" / "episode_results_rank0.jsonl"
    commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:1]))
    assert read_run(directory).arms["lift"].episodes.success.tolist() == [1.0]


def test_of_a_job_that_was_stopped_only_the_episodes_of_its_decision_are_there(tmp_path):
    contest(tmp_path, new_and_old(), [ASKED])
    from_tables = read_run(tmp_path).arms["new"]
    (tmp_path / "results.json").unlink()
    without = read_run(tmp_path).arms["new"]
    assert from_tables.num_missing == without.num_missing == 0
    assert (
        from_tables.episodes.index.tolist() == without.episodes.index.tolist() == list(range(from_tables.planned or 0))
    )
    assert from_tables.asked == ("new-vs-old",)


def test_what_is_missing_is_counted(tmp_path):
    assert arm_of(tmp_path / "run", "ss--f").num_missing == 2


def test_a_job_whose_success_nobody_measures_says_so(tmp_path):
    assert not arm_of(tmp_path / "a", "uu").measures_success
    assert not arm_of(tmp_path / "b", "ee").measures_success
    assert arm_of(tmp_path / "c", "ef").measures_success


def test_the_films_of_an_episode_are_found(tmp_path):
    arm = arm_of(tmp_path / "run", "ss")
    videos = tmp_path / "run" / "lift" / "videos"
    videos.mkdir()
    for name in (
        "viewport-env0-episode-1.mp4",
        "robot-cam-env0-wrist_cam_rgb-episode-1.mp4",
        "viewport-env1-episode-0.mp4",
    ):
        (videos / name).touch()
    assert [path.name for path in arm.videos[1]] == [
        "robot-cam-env0-wrist_cam_rgb-episode-1.mp4",
        "viewport-env0-episode-1.mp4",
    ]


def test_a_job_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    arms = run_of(tmp_path / "run", {"lift": "s", "reach": "s"}).arms
    with pytest.raises(ConfigError, match=r"--baseline: there is no job 'lifft'; did you mean 'lift'\?"):
        named_arm(arms, "lifft", option="--baseline")


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="it is not the output of a run"):
        read_run(tmp_path)
