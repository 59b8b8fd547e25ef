import json
import threading
import time

import pytest

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.training.config import new_run_directory
from isaaclab_arena.training.training_run import LATEST, announce, await_announcement


def test_ranks_wait_for_a_slow_rank_zero(tmp_path):
    def slowly() -> None:
        time.sleep(0.3)
        announce(tmp_path, "now", tmp_path)

    writer = threading.Thread(target=slowly)
    writer.start()
    assert await_announcement(tmp_path, "now", timeout_s=60) == tmp_path
    writer.join()


def test_what_an_older_run_left_is_not_taken_for_this_one(tmp_path):
    announce(tmp_path, "before", tmp_path)
    with pytest.raises(DistributedError, match="it is that of another run; all ranks need the same --log_root"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_rank_that_sees_no_word_says_what_it_waited_for(tmp_path):
    with pytest.raises(DistributedError, match=r"waited 0.1 s for rank 0 .*\.latest_run, and there is none"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_word_that_is_half_written_is_waited_for(tmp_path):
    (tmp_path / LATEST).write_text(json.dumps({"launch": "now"})[:5], encoding="utf-8")
    with pytest.raises(DistributedError):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_ranks_of_many_starts_one_after_the_other_never_meet_in_the_directory_of_another(tmp_path):
    for number in range(50):
        directory = new_run_directory(tmp_path, "reach", "")
        launch = f"start {number}"
        writer = threading.Thread(target=announce, args=(tmp_path, launch, directory))
        writer.start()
        assert await_announcement(tmp_path, launch, timeout_s=60) == directory
        writer.join()
