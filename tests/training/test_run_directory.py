import json
import threading
import time
from datetime import UTC, datetime

import pytest

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.run_directory import (
    LATEST,
    SETTINGS,
    LatestRun,
    announce,
    await_announcement,
    new_run_directory,
    newest_run,
)

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_two_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    folders = [new_run_directory(tmp_path, "reach", "", now=NOON) for _ in range(2)]
    assert [folder.name for folder in folders] == ["2026-11-21_12-00-00", "2026-11-21_12-00-00_2"]


def test_a_run_can_be_given_a_name(tmp_path):
    assert new_run_directory(tmp_path, "reach", "fast", now=NOON).name == "2026-11-21_12-00-00_fast"


def test_ranks_wait_for_a_slow_rank_zero(tmp_path):
    run = LatestRun(launch="now", run_directory=tmp_path)

    def slowly() -> None:
        time.sleep(0.3)
        announce(tmp_path, run)

    writer = threading.Thread(target=slowly)
    writer.start()
    assert await_announcement(tmp_path, "now", timeout_s=10) == tmp_path
    writer.join()


def test_what_an_older_run_left_is_not_taken_for_this_one(tmp_path):
    announce(tmp_path, LatestRun(launch="before", run_directory=tmp_path))
    with pytest.raises(DistributedError, match="it is that of another run; all ranks need the same --log_root"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_rank_that_sees_no_word_says_what_it_waited_for(tmp_path):
    with pytest.raises(DistributedError, match=r"waited 0.1 s for rank 0 .*\.latest_run, and there is none"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_word_that_is_half_written_is_waited_for(tmp_path):
    (tmp_path / LATEST).write_text(json.dumps({"launch": "now"})[:5], encoding="utf-8")
    with pytest.raises(DistributedError):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_the_newest_run_is_the_one_that_began_last(tmp_path):
    for stamp in ("2026-11-20_10-00-00", "2026-11-21_09-00-00"):
        settings = tmp_path / "reach" / stamp / SETTINGS
        settings.parent.mkdir(parents=True)
        settings.touch()
        (tmp_path / "reach" / stamp / "model_0.pt").touch()
    # One that failed before its first checkpoint.
    failed = tmp_path / "reach" / "2026-11-22_00-00-00" / SETTINGS
    failed.parent.mkdir(parents=True)
    failed.touch()
    assert newest_run(tmp_path, "reach").name == "2026-11-21_09-00-00"


def test_there_has_to_be_a_run_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume: there is no run in .*reach to go on with"):
        newest_run(tmp_path, "reach")


def test_ranks_of_many_starts_one_after_the_other_never_meet_in_the_folder_of_another(tmp_path):
    for number in range(50):
        folder = new_run_directory(tmp_path, "reach", "", now=NOON)
        launch = f"start {number}"
        writer = threading.Thread(target=announce, args=(tmp_path, LatestRun(launch=launch, run_directory=folder)))
        writer.start()
        assert await_announcement(tmp_path, launch, timeout_s=10) == folder
        writer.join()
