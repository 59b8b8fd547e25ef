"""What a crash leaves in a run's directory, and what becomes of it."""

import errno
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.commits import line_text
from isaaclab_arena.storage.ledger import ReportedStatus, Reproducible
from isaaclab_arena.storage.recovery import Recovery, consolidate_leftovers
from tests.growth import assert_grows_linearly
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, planned, recover, state_of

DATASET, LINES, PART = "dataset_lift.hdf5", "episode_results_rank0.jsonl", "e000001.h5"
FELL = {"outcome": Outcome.ERROR, "error": "it fell"}
STEPS = {"num_episodes": None, "num_steps": 100}


@pytest.fixture
def job(tmp_path) -> JobOnDisk:
    return JobOnDisk(tmp_path)


def repaired(output: Path, *jobs, **how) -> Recovery:
    """Recover a run; what is repaired once stays so."""
    recovery = recover(output, *jobs, **how)
    again = recover(output, *jobs, **how)
    assert (again.jobs[0].finished, again.notes) == (recovery.jobs[0].finished, ())
    return recovery


def kept(job: JobOnDisk, recovery: Recovery) -> tuple[set[int], dict[str, list[int]], set[str]]:
    """Finished episodes, intact recordings by file, and what was set aside."""
    return set(recovery.jobs[0].finished), job.recorded(), job.set_aside()


def snapshot(directory) -> dict[str, tuple[int, int, int]]:
    paths = [directory, *directory.rglob("*")]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def change_one_value(path, index: int) -> None:
    with h5py.File(path, "r+") as file:
        actions: Any = file[f"data/demo_{index}/actions"]
        actions[0, 0] += 1


@pytest.mark.parametrize("limit", [{}, STEPS], ids=["episodes", "steps"])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_complete_run_is_not_written_to(tmp_path, job, limit, is_recorded):
    if is_recorded:
        job.finish(0, 1, 2, 3)
        job.consolidate()
    else:
        job.commit(*(job.line(index, checksum=None, dataset_file=None, episode_file=None) for index in range(4)))
    job.report()
    before = snapshot(tmp_path)
    recovery = recover(tmp_path, planned(**limit))
    assert (recovery.left(), recovery.notes, recovery.jobs[0].finished) == ((), (), {0, 1, 2, 3})
    assert snapshot(tmp_path) == before


def test_a_run_that_never_began_has_everything_to_run_except_skipped_jobs_and_nothing_is_made(tmp_path):
    (left,) = recover(tmp_path, planned(), planned("skipped", index=1, status=JobStatus.COMPLETED)).left()
    assert (left.job, left.finished) == ("lift", ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "dataset"), [("dataset_lift_rank2.hdf5", "dataset_lift_rank2.hdf5"), ("../../stolen.hdf5", DATASET)]
)
def test_committed_episodes_go_into_the_dataset_that_their_lines_name_within_their_job(tmp_path, job, said, dataset):
    job.finish(0, 2, dataset_file=said)
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0, 2}, {dataset: [0, 2]}, set())
    assert recovery.notes == (f"job 'lift': brought 2 recorded episodes into {dataset}",)
    assert recovery.left()


def test_a_consolidation_that_was_interrupted_before_it_removed_the_parts_is_completed(tmp_path, job):
    job.finish(0, 1)
    contents = {index: job.part(index).read_bytes() for index in (0, 1)}
    job.consolidate()
    job.part(0).parent.mkdir()
    for index, content in contents.items():
        job.part(index).write_bytes(content)
    assert kept(job, repaired(tmp_path)) == ({0, 1}, {DATASET: [0, 1]}, set())


@pytest.mark.parametrize("others", [0, 1])
def test_a_report_that_is_none_is_set_aside_and_takes_nothing_from_a_job_that_is_whole_without_it(
    tmp_path, job, others
):
    job.finish(0, 1, 2, 3)
    for _ in range(others):
        job.report()
    damaged = job.report()
    damaged.write_text("{")
    assert len(repaired(tmp_path).left()) == 1 - others
    assert job.set_aside() == {damaged.name}


def test_a_decided_job_owes_its_report_alone_or_nothing(tmp_path, job):
    job.finish(0, 1, 2)
    (owed,) = recover(tmp_path).left(lambda _: 2)
    assert owed.finished == ((0, 4),)
    job.report(ReportedStatus.BEGUN, reproducible=Reproducible.BITWISE)
    assert recover(tmp_path).left(lambda _: 2) == ()
    assert recover(tmp_path).left()[0].finished == ((0, 3),)


def test_temporary_files_of_dead_processes_are_removed_and_counted(tmp_path, job):
    job.finish(0)
    temporaries = [
        tmp_path / ".results.csv.host.7.tmp",
        tmp_path / "logs" / ".rank0.status.json.12.tmp",
        job.directory / ".dataset_lift.hdf5.host.name.7.tmp",
        job.directory / "episodes" / ".e000001.h5.host.7.tmp",
        job.directory / "videos" / ".robot-cam-env0-a-episode-0.mp4.host.7.tmp",
    ]
    mine = tmp_path / "notes.tmp"
    for path in (*temporaries, mine):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    notes = recover(tmp_path).notes
    assert not any(path.exists() for path in temporaries)
    assert mine.exists()
    assert {"the run: removed 2 temporary files", "job 'lift': removed 3 temporary files"} <= {
        note.removesuffix(" of dead processes") for note in notes
    }


def test_torn_and_unreadable_lines_are_told(tmp_path, job):
    job.finish(0)
    job.commit(job.line(1)).write_bytes(b"garbage\n" + line_text(job.line(1)).encode())
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0}, {DATASET: [0]}, {"episode_results_rank0_life1.jsonl"})
    for words in ("line 1 is no", "was torn", "removed 1 lines from episode_results_rank0_life1.jsonl;"):
        assert any(words in note for note in recovery.notes)


@pytest.mark.parametrize("said", [{"success": False, "outcome": "failure"}, {"timestamp": "1970"}, FELL])
def test_an_episode_whose_line_was_changed_runs_again(tmp_path, job, said):
    job.finish(0, 2)
    job.write_part(job.line(1))
    job.commit(job.line(1, **said))
    job.consolidate()
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0, 2}, {DATASET: [0, 2]}, {PART, "episode_results_rank0_life1.jsonl"})
    assert 1 not in job.committed()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (LINES, os.mkfifo),
        (DATASET, Path.mkdir),
        (DATASET, os.mkfifo),
        ("job_report_rank0.json", lambda path: path.symlink_to("nothing")),
    ],
)
def test_what_lies_in_the_place_of_a_file_and_is_none_is_set_aside(tmp_path, job, name, make):
    job.finish(0, 1)
    job.consolidate()
    job.report()
    path = job.directory / name
    path.unlink()
    make(path)
    recovery = repaired(tmp_path)
    assert any(f"set aside {name}: " in note for note in recovery.notes)
    assert os.path.lexists(job.directory / "set_aside" / name)
    # Recordings carry their lines.
    assert recovery.jobs[0].finished == (set() if name == DATASET else {0, 1})


def test_a_line_of_an_episode_that_is_not_planned_is_withdrawn(tmp_path, job):
    job.finish(0, 1, 2, 3, 4)
    job.report()
    assert not repaired(tmp_path).left()
    assert set(job.committed()) == {0, 1, 2, 3}
    assert job.set_aside() == {"e000004.h5", LINES}


# Damage


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"no HDF5 at all"),
    "only a signature": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "changed value": lambda path: change_one_value(path, 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_set_aside_and_its_episode_runs_again(tmp_path, job, damage):
    job.finish(0, 1, 2)
    damage(job.part(1))
    damaged = job.part(1).read_bytes()
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0, 2}, {DATASET: [0, 2]}, {PART, LINES})
    assert set(job.committed()) == {0, 2}
    assert (job.directory / "set_aside" / PART).read_bytes() == damaged
    assert any("episode 1 of e000001.h5" in note for note in recovery.notes)


@pytest.mark.parametrize("said", [None, np.uint64(2**64 - 1), np.int64(-1)])
def test_a_damaged_episode_is_left_out_of_the_dataset_and_the_old_file_is_kept(tmp_path, job, said):
    job.finish(0, 1, 2, 3)
    job.consolidate()
    job.report()
    if said is None:
        change_one_value(job.dataset, 2)
    else:
        with h5py.File(job.dataset, "r+") as file:
            file["data/demo_2"].attrs["num_samples"] = said
    old = job.dataset.read_bytes()
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0, 1, 3}, {DATASET: [0, 1, 3]}, {DATASET, LINES})
    assert recovery.left()
    assert (job.directory / "set_aside" / DATASET).read_bytes() == old
    assert (said is None) or any(f"says that it has {said} control steps" in note for note in recovery.notes)
    with h5py.File(job.dataset) as file:
        assert file["data"].attrs["env_args"] == '{"env_name": "lift", "type": 2}'
        assert file["data"].attrs["total"] == 15


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_dataset_that_is_unreadable_or_gone_runs_again(tmp_path, job, is_gone):
    job.finish(0, 1)
    job.consolidate()
    job.dataset.write_bytes(b"")
    if is_gone:
        job.dataset.unlink()
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == (set(), {}, {LINES} if is_gone else {LINES, DATASET})
    assert job.committed() == {}
    assert any("episodes 0 to 1" in note for note in recovery.notes)


def test_a_recording_other_than_the_committed_one_is_set_aside(tmp_path, job):
    job.commit(job.line(1))
    job.write_part(job.line(1, length=9), commit="")
    assert kept(job, repaired(tmp_path)) == (set(), {}, {PART, LINES})


@pytest.mark.parametrize("length", [5, 9])
def test_an_episode_of_two_ranks_is_kept_once_where_both_are_alike_and_else_stays(tmp_path, job, length):
    other = JobOnDisk(tmp_path, dataset="dataset_lift_rank1.hdf5")
    job.finish(0)
    job.consolidate()
    line = other.line(0, length=length, rank=1)
    other.write_part(line)
    other.commit(line, rank=1)
    other.consolidate()
    before = snapshot(tmp_path)
    assert recover(tmp_path).jobs[0].finished == {0}
    if length == 5:
        assert job.recorded() == {DATASET: [0]}
    else:
        assert snapshot(tmp_path) == before


# Orphans: recorded, but not committed


def test_an_episode_whose_process_died_before_the_commit_line_is_adopted(tmp_path, job):
    job.finish(0)
    job.write_part(job.line(1, rank=3))
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == ({0, 1}, {DATASET: [0, 1]}, set())
    assert job.committed()[1] == job.line(1, rank=3)
    assert any("adopted episode 1" in note for note in recovery.notes)


def test_episodes_of_a_dataset_are_adopted_when_the_commit_file_is_lost(tmp_path, job):
    lines = job.finish(0, 1)
    job.consolidate()
    (job.directory / LINES).unlink()
    assert recover(tmp_path).jobs[0].finished == {0, 1}
    assert list(job.committed().values()) == lines


FOREIGN = {
    "another job": (1, {"job": "push"}, "of another plan"),
    "another seed": (1, {"seed": 4}, "of another plan"),
    "another index": (1, {"episode_index": 2}, "of another plan"),
    "another configuration": (1, {"config_hash": "wrong"}, "another hash"),
    "no provenance": (1, {"provenance": "not JSON"}, "another hash"),
    "no line": (1, {"commit": ""}, "carries none"),
    "a line of another episode": (1, {"commit": "other"}, "of another episode"),
    "an episode beyond the plan": (4, {}, ""),
    "a damaged file": (1, None, ""),
}


@pytest.mark.parametrize(("index", "attributes", "reason"), FOREIGN.values(), ids=FOREIGN)
def test_a_recording_that_does_not_belong_to_the_plan_is_set_aside(tmp_path, job, index, attributes, reason):
    if (attributes or {}).get("commit"):
        attributes = {"commit": line_text(job.line(3))}
    part = job.write_part(job.line(index), **(attributes or {}))
    if attributes is None:
        change_one_value(part, index)
    recovery = repaired(tmp_path)
    assert kept(job, recovery) == (set(), {}, {part.name})
    assert job.committed() == {}
    assert any(reason in note for note in recovery.notes)


def test_what_is_set_aside_never_replaces_what_was_before(tmp_path, job):
    for content in (b"first", b"second"):
        job.write_part(job.line(1)).write_bytes(content)
        recover(tmp_path)
    assert job.set_aside() == {PART, "e000001.1.h5"}


# Errors that run again


@pytest.mark.parametrize("is_consolidated", [False, True])
def test_errors_run_again_where_that_is_asked_for(tmp_path, job, is_consolidated):
    job.finish(0, 2)
    job.finish(1, **FELL)
    if is_consolidated:
        job.consolidate()
    assert recover(tmp_path).jobs[0].finished == {0, 1, 2}
    recovery = recover(tmp_path, retry_errors=True)
    assert kept(job, recovery) == ({0, 2}, {DATASET: [0, 2]}, {PART})
    assert job.committed()[1].outcome == "error"
    hdf5.verify_episodes(job.directory / "set_aside" / PART, [1])
    # The retry that was asked for is still due if the program dies before it, once the attempt has begun.
    begin_attempt(tmp_path, 2, recovery, retry_errors=True)
    again = recover(tmp_path, attempt=3)
    assert (state_of(again), again.notes) == (state_of(recovery), ())


def test_another_recording_of_the_same_attempt_takes_no_errors_place(tmp_path, job):
    job.finish(1, **FELL)
    job.consolidate()
    job.write_part(job.line(1, length=7))
    assert kept(job, repaired(tmp_path)) == ({1}, {DATASET: [1]}, {PART})
    assert job.committed()[1].outcome == "error"


@pytest.mark.parametrize("earlier_is_part", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
def test_of_results_beside_an_error_the_earlier_attempts_is_adopted_whatever_its_file(
    tmp_path, job, earlier_is_part, is_alone
):
    job.finish(1, **FELL)
    recover(tmp_path, retry_errors=True)
    earlier, later = job.line(1, length=7, attempt=2), job.line(1, length=9, attempt=3)
    in_dataset, in_part = (later, earlier) if earlier_is_part else (earlier, later)
    if earlier is in_dataset or not is_alone:
        job.write_part(in_dataset)
        job.consolidate()
    if earlier is in_part or not is_alone:
        job.write_part(in_part)
    assert repaired(tmp_path, attempt=4).jobs[0].finished == {1}
    assert job.committed()[1] == earlier
    assert job.recorded() == {DATASET: [1]}
    assert hdf5.read_attributes(job.dataset, 1)["checksum"] == earlier.checksum


def test_errors_that_were_not_committed_or_have_no_recordings_run_again_too(tmp_path, job):
    job.commit(*(job.line(index, checksum=None) for index in (0, 1)))
    job.commit(job.line(2, outcome=Outcome.ERROR, checksum=None))
    assert recover(tmp_path).jobs[0].finished == {0, 1, 2}
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == {0, 1}
    job.write_part(job.line(3, outcome=Outcome.ERROR))
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == {0, 1}
    assert job.set_aside() == {"e000003.h5"}


# Jobs that are limited by steps


@pytest.mark.parametrize("why", ["it did not end", "another rank did not", "its policy limits it", "it is damaged"])
def test_a_job_limited_by_steps_that_is_not_whole_starts_anew(tmp_path, job, why):
    job.finish(0, 1)
    job.consolidate()
    job.write_part(job.line(2))
    is_cut = why in ("it did not end", "its policy limits it")
    job.report(ReportedStatus.INTERRUPTED if is_cut else ReportedStatus.COMPLETED, env_steps=7)
    if why == "another rank did not":
        job.report(ReportedStatus.INTERRUPTED, rank=1)
    if why == "it is damaged":
        change_one_value(job.dataset, 0)
    num_steps = None if why == "its policy limits it" else 100
    recovery = recover(tmp_path, planned(num_episodes=None, num_steps=num_steps))
    assert (len(recovery.left()), recovery.jobs[0].finished, job.committed()) == (1, set(), {})
    assert {path.name for path in job.directory.iterdir()} == {"set_aside"}
    names = {f"attempt_1/{name}" for name in (DATASET, "e000002.h5", LINES, "job_report_rank0.json")}
    assert job.set_aside() >= names


def test_an_adopted_episode_is_committed_before_its_file_goes_into_a_dataset(tmp_path, job, monkeypatch):
    job.write_part(job.line(1))

    replace = Path.replace

    def stop(path: Path, target: Path) -> Path:
        if target.suffix == ".hdf5":
            raise OSError(errno.EIO, "the disk is gone")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(StorageError, match="the disk is gone"):
        recover(tmp_path)
    assert job.committed() == {1: job.line(1)}
    assert job.part(1).exists()


def test_of_a_job_that_starts_anew_lines_and_reports_are_moved_last(tmp_path, job, monkeypatch):
    job.finish(0)
    job.consolidate()
    job.finish(1)
    job.report(ReportedStatus.INTERRUPTED, env_steps=7)
    moved: list[str] = []

    rename = Path.rename

    def noted(path: Path, target: Path) -> Path:
        moved.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    recover(tmp_path, planned(num_episodes=None, num_steps=100))
    assert [name.partition("_")[0] for name in moved] == ["e000001.h5", "dataset", "episode", "episode", "job"]


def test_committed_parts_are_consolidated_at_the_end_of_a_run_and_others_stay(tmp_path, job):
    job.finish(0, 1)
    job.write_part(job.line(2))
    job.commit(job.line(3))
    job.write_part(job.line(3, length=9))
    notes, loss = consolidate_leftovers(job.directory, planned().name)
    assert job.recorded() == {DATASET: [0, 1], "e000002.h5": [2], "e000003.h5": [3]}
    assert len(notes) == 3
    assert "episode 3" in str(loss)
    assert consolidate_leftovers(tmp_path / "no job", planned().name) == ([], None)


def test_the_last_attempt_is_read_from_the_files_of_the_job(tmp_path, job):
    job.commit(job.line(0, attempt=3, checksum=None, dataset_file=None))
    assert recover(tmp_path).jobs[0].last_attempt == 3


def test_ten_times_the_episodes_are_looked_at_in_about_ten_times_the_time(tmp_path, job):
    text = line_text(job.line(0, checksum=None, dataset_file=None)).replace('"episode_index": 0', '"episode_index": %d')

    def look(num_episodes: int) -> None:
        job.commit().write_text("".join(f"{text % index}\n" for index in range(num_episodes)))
        (recovered,) = recover(tmp_path, planned(num_episodes=num_episodes)).jobs
        assert recovered.finished == {*range(num_episodes)}

    assert_grows_linearly(look, size=300)
