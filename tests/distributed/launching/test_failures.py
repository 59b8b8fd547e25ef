import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from isaaclab_arena.distributed.launch import failures_recorded, leave_last_words
from isaaclab_arena.distributed.rank_processes import FailureRecord, first_failure, read_failure
from isaaclab_arena.errors import ConfigError


def crash(rank: int, at: int = 0, message: str = "ValueError: no") -> FailureRecord:
    return FailureRecord(rank=rank, message=message, text=f"Traceback\n{message}", recorded_ns=at)


def mistake(rank: int, at: int = 0, message: str = "gamma: must be below 1") -> FailureRecord:
    return FailureRecord(rank=rank, message=message, text=message, recorded_ns=at)


@pytest.mark.parametrize(
    ("ended", "records", "rank"),
    [
        ({}, [], None),
        ({0: 0, 1: 0}, [], None),
        ({1: 1}, [], 1),
        ({0: 1, 1: 1}, [crash(0, at=9), crash(1, at=5)], 1),
        ({0: 1, 1: -9}, [crash(0, at=1)], 1),
        ({0: 1, 1: 3}, [crash(0, at=1)], 1),
        ({0: 1}, [mistake(1)], 1),
        ({}, [crash(1)], 1),
        ({}, [mistake(1)], None),
        ({}, [crash(0)], None),
        ({0: 2, 1: 2}, [mistake(1, at=1), mistake(0, at=5)], 0),
    ],
    ids=[
        "nothing yet", "all well", "a code alone", "words left first", "killed without a word", "left without a word",
        "a word from one that has not ended", "a crash is told at once", "a mistake is told when its rank has ended",
        "rank 0 tells of itself", "the same mistake is rank 0's to tell",
    ],
)  # fmt: skip
def test_the_rank_that_failed_first_is_found(ended, records, rank):
    failure = first_failure(ended, records)
    assert (None if failure is None else failure.rank) == rank


def report_of(ended, records, **given) -> str:
    failure = first_failure(ended, records)
    assert failure is not None
    return failure.report(**{"world_size": 2, "log_file": None, "unseen_lines": [], **given})


def test_a_report_names_the_rank_and_shows_why_it_failed(tmp_path):
    report = report_of({1: 1}, [crash(1)], log_file=tmp_path / "rank1.log")
    assert report == (
        f"rank 1 of 2 failed with exit code 1; its output is in {tmp_path}/rank1.log\n"
        "[rank 1] Traceback\n[rank 1] ValueError: no\n"
    )


def test_a_rank_that_ended_in_good_order_after_a_signal_was_stopped_and_did_not_fail():
    assert report_of({1: 143}, []) == "rank 1 of 2 was stopped by SIGTERM\n"
    assert report_of({1: 137}, []) == "rank 1 of 2 failed with exit code 137\n"


def test_a_report_on_a_rank_that_left_no_word_ends_with_its_last_lines():
    assert report_of({1: -11}, [], unseen_lines=["Fatal Python error"]) == (
        "rank 1 of 2 was killed by SIGSEGV\n[rank 1] Fatal Python error\n"
    )


def test_what_rank_0_has_said_itself_is_not_repeated():
    assert report_of({0: 2}, [mistake(0)]) == ""
    assert report_of({0: 1}, []) == ""
    assert report_of({0: 1}, [crash(0)]) == "rank 0 of 2 failed with exit code 1\n"
    assert report_of({0: -9}, []) == "rank 0 of 2 was killed by SIGKILL\n"


def test_a_record_is_read_back_and_knows_whether_it_was_raised_on_purpose(tmp_path, monkeypatch):
    path = tmp_path / "rank1.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert read_failure(path, rank=1) is None
    with pytest.raises(ConfigError), failures_recorded():
        raise ConfigError("gamma: must be below 1")
    expected = read_failure(path, rank=1)
    with pytest.raises(ValueError, match="could not convert"), failures_recorded():
        float("no")
    unexpected = read_failure(path, rank=1)
    assert expected is not None
    assert unexpected is not None
    assert (expected.message, expected.is_expected) == ("gamma: must be below 1", True)
    assert unexpected.message == "ValueError: could not convert string to float: 'no'"
    assert not unexpected.is_expected
    assert unexpected.text.startswith("Traceback")
    path.write_text("{torn")
    assert read_failure(path, rank=1) is None


def test_torchruns_report_ends_with_the_last_words_of_the_rank(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.delenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE", raising=False)
    leave_last_words("job  status\nlift failed\ngo on with: that")
    report = str(ChildFailedError("eval_runner", {0: ProcessFailure(0, 42, 1, str(path))}))
    *_, table, first, line, border = report.splitlines()
    assert [table, first, line] == ["  job  status", "  lift failed", "  go on with: that"]
    assert set(border) == {"="}


def test_a_launcher_of_ours_needs_no_last_words(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE", str(tmp_path / "run_directory"))
    leave_last_words("the table")
    assert not (tmp_path / "error.json").exists()
