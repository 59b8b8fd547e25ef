"""What a crash leaves in a run's directory, and what becomes of it."""

import dataclasses
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
from isaaclab_arena.storage.atomic import move_aside
from isaaclab_arena.storage.commits import line_text
from isaaclab_arena.storage.episodes import read_attributes
from isaaclab_arena.storage.recovery import consolidate_leftovers
from isaaclab_arena.storage.reports import ReportedStatus, Reproducible
from tests.growth import assert_grows_linearly
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, planned, recover


@pytest.fixture
def job(tmp_path) -> JobOnDisk:
    return JobOnDisk(tmp_path)


def snapshot(directory) -> dict[str, tuple[int, int, int]]:
    paths = [directory, *directory.rglob("*")]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def change_one_value(path, index: int) -> None:
    with h5py.File(path, "r+") as file:
        actions: Any = file[f"data/demo_{index}/actions"]
        actions[0, 0] += 1


def test_a_complete_run_is_not_written_to(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.consolidate()
    job.report()
    before = snapshot(tmp_path)
    recovery = recover(tmp_path)
    assert not recovery.left()
    assert recovery.jobs[0].finished == ((0, 4),)
    assert snapshot(tmp_path) == before
    assert recover(tmp_path).notes == ()


def test_a_run_that_never_began_has_everything_to_run_and_nothing_is_made(tmp_path):
    recovery = recover(tmp_path)
    assert recovery.left()
    assert recovery.jobs[0].finished == ()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_the_job_file_skips_is_left_alone(tmp_path):
    assert not recover(tmp_path, planned(status=JobStatus.COMPLETED)).left()


def test_committed_episodes_are_finished_and_their_files_go_into_the_dataset_that_their_lines_name(tmp_path):
    job = JobOnDisk(tmp_path, dataset="dataset_lift_rank2.hdf5")
    job.finish(0, 2)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1), (2, 3))
    assert recovery.left()
    assert job.recorded() == {"dataset_lift_rank2.hdf5": [0, 2]}
    assert recovery.notes == ("job 'lift': brought 2 recorded episodes into dataset_lift_rank2.hdf5",)
    assert recover(tmp_path) == dataclasses.replace(recovery, notes=())


def test_a_consolidation_that_was_interrupted_before_it_removed_the_parts_is_completed(tmp_path, job):
    job.finish(0, 1)
    contents = {index: job.part(index).read_bytes() for index in (0, 1)}
    job.consolidate()
    job.part(0).parent.mkdir()
    for index, content in contents.items():
        job.part(index).write_bytes(content)
    recover(tmp_path)
    assert job.recorded() == {"dataset_lift.hdf5": [0, 1]}
    assert job.set_aside() == set()


def test_all_episodes_without_a_report_need_a_run_that_reports(tmp_path, job):
    job.finish(0, 1, 2, 3)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 4),)
    assert recovery.left()


@pytest.mark.parametrize("status", [ReportedStatus.FAILED, ReportedStatus.INTERRUPTED])
def test_the_last_attempts_report_decides(tmp_path, job, status):
    job.finish(0, 1, 2, 3)
    job.report(status)
    assert recover(tmp_path).left()
    job.report(attempt=2)
    assert not recover(tmp_path, attempt=3).left()


def test_a_rank_that_finished_what_an_interrupted_one_had_begun_completes_the_job(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.report(ReportedStatus.INTERRUPTED)
    job.report(rank=1)
    assert not recover(tmp_path).left()


def test_a_report_that_is_none_is_set_aside_and_the_job_reports_again(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.report().write_text("{")
    recovery = recover(tmp_path)
    assert recovery.left()
    assert job.set_aside() == {"job_report_rank0.json"}


def test_a_report_that_is_none_takes_nothing_from_a_job_that_is_whole_without_it(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.report()
    job.report().write_text("{")
    assert not recover(tmp_path).left()
    assert job.set_aside() == {"job_report_rank0_life1.json"}
    assert recover(tmp_path).notes == ()


def test_a_job_whose_rank_said_what_it_promises_and_died_after_its_last_episode_owes_nothing(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.report(ReportedStatus.BEGUN, reproducible=Reproducible.BITWISE)
    assert not recover(tmp_path).left()
    assert job.recorded() == {"dataset_lift.hdf5": [0, 1, 2, 3]}


def test_a_decided_job_owes_its_report_alone_or_nothing(tmp_path, job):
    job.finish(0, 1, 2)
    (owed,) = recover(tmp_path).left(lambda _: 2)
    assert owed.finished == ((0, 4),)
    job.report(ReportedStatus.BEGUN, reproducible=Reproducible.BITWISE)
    assert recover(tmp_path).left(lambda _: 2) == ()
    assert recover(tmp_path).left()[0].finished == ((0, 3),)


def test_a_job_of_unknown_length_runs_until_it_reports_that_it_completed(tmp_path, job):
    unknown = planned(num_episodes=None)
    job.finish(0, 1)
    recovery = recover(tmp_path, unknown)
    assert (len(recovery.left()), recovery.jobs[0].finished) == (1, ((0, 2),))
    job.report(num_episodes=2)
    assert not recover(tmp_path, unknown).left()


# Temporary files


def test_temporary_files_of_dead_processes_are_removed_and_counted(tmp_path, job):
    job.finish(0)
    (tmp_path / "logs").mkdir()
    (job.directory / "videos").mkdir()
    temporaries = [
        tmp_path / ".results.csv.host.7.tmp",
        tmp_path / "logs" / ".rank0.status.json.12.tmp",
        job.directory / ".dataset_lift.hdf5.host.name.7.tmp",
        job.directory / "episodes" / ".e000001.h5.host.7.tmp",
        job.directory / "videos" / ".robot-cam-env0-a-episode-0.mp4.host.7.tmp",
    ]
    for path in temporaries:
        path.write_bytes(b"half")
    mine = tmp_path / "notes.tmp"
    mine.touch()
    notes = recover(tmp_path).notes
    assert not any(path.exists() for path in temporaries)
    assert mine.exists()
    assert "the run: removed 2 temporary files of dead processes" in notes
    assert "job 'lift': removed 3 temporary files of dead processes" in notes


# Commit lines


def test_torn_and_unreadable_lines_are_told(tmp_path, job):
    job.finish(0)
    job.commit(job.line(1)).write_bytes(b"garbage\n" + line_text(job.line(1)).encode())
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1),)
    assert any("line 1 is no episode" in note for note in recovery.notes)
    assert any("last line was torn" in note for note in recovery.notes)
    assert any("took lines out of episode_results_rank0_life1.jsonl: 1;" in note for note in recovery.notes)
    assert job.set_aside() == {"episode_results_rank0_life1.jsonl"}
    assert recover(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"success": False, "outcome": "failure"}, "its commit line says success False, its recording True"),
        ({"episode_return": 9.5}, "its commit line says episode_return 9.5, its recording 1.5"),
        ({"timestamp": "1970"}, "its commit line says timestamp 1970, its recording "),
    ],
)
def test_an_episode_whose_line_was_changed_runs_again(tmp_path, job, said, words):
    job.finish(0, 2)
    job.write_part(job.line(1))
    job.commit(job.line(1, **said))
    job.consolidate()
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1), (2, 3))
    assert any(words in note for note in recovery.notes), recovery.notes
    assert job.recorded() == {"dataset_lift.hdf5": [0, 2]}
    assert job.set_aside() == {"e000001.h5", "episode_results_rank0_life1.jsonl"}
    assert recover(tmp_path).notes == ()


@pytest.mark.parametrize("name", ["episode_results_rank0.jsonl", "dataset_lift.hdf5", "job_report_rank0.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nothing")])
def test_what_lies_in_the_place_of_a_file_and_is_none_is_set_aside(tmp_path, job, name, make):
    job.finish(0, 1)
    job.consolidate()
    job.report()
    path = job.directory / name
    path.unlink()
    make(path)
    recovery = recover(tmp_path)
    assert any(f"set aside {name}: cannot read {path}: " in note for note in recovery.notes)
    assert os.path.lexists(job.directory / "set_aside" / name)
    # Recordings carry their lines.
    assert recovery.jobs[0].finished == (() if name.startswith("dataset") else ((0, 2),))
    assert recover(tmp_path).notes == ()


def test_a_line_of_an_episode_that_is_not_planned_is_withdrawn(tmp_path, job):
    job.finish(0, 1, 2, 3, 4)
    job.report()
    recovery = recover(tmp_path)
    assert not recovery.left()
    assert set(job.committed()) == {0, 1, 2, 3}
    assert job.set_aside() == {"e000004.h5", "episode_results_rank0.jsonl"}


def test_episodes_without_recordings_need_no_check(tmp_path, job):
    job.commit(*(job.line(index, checksum=None, dataset_file=None, episode_file=None) for index in range(4)))
    job.report()
    before = snapshot(tmp_path)
    assert not recover(tmp_path).left()
    assert snapshot(tmp_path) == before


# Damage


@pytest.mark.parametrize("content", [b"", b"no HDF5 at all", None], ids=["empty", "garbage", "changed value"])
def test_a_damaged_part_is_set_aside_and_its_episode_runs_again(tmp_path, job, content):
    job.finish(0, 1, 2)
    if content is None:
        change_one_value(job.part(1), 1)
    else:
        job.part(1).write_bytes(content)
    damaged = job.part(1).read_bytes()
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1), (2, 3))
    assert set(job.committed()) == {0, 2}
    assert job.recorded() == {"dataset_lift.hdf5": [0, 2]}
    assert (job.directory / "set_aside" / "e000001.h5").read_bytes() == damaged
    assert any("set aside episode 1 of e000001.h5" in note for note in recovery.notes)
    assert recover(tmp_path).notes == ()


def test_a_truncated_part_is_set_aside(tmp_path, job):
    job.finish(0)
    content = job.part(0).read_bytes()
    job.part(0).write_bytes(content[: len(content) // 2])
    assert recover(tmp_path).jobs[0].finished == ()
    assert "e000000.h5" in job.set_aside()


def test_a_damaged_episode_is_left_out_of_the_dataset_and_the_old_file_is_kept(tmp_path, job):
    job.finish(0, 1, 2, 3)
    job.consolidate()
    job.report()
    change_one_value(job.dataset, 2)
    old = job.dataset.read_bytes()
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 2), (3, 4))
    assert recovery.left()
    assert job.recorded() == {"dataset_lift.hdf5": [0, 1, 3]}
    assert (job.directory / "set_aside" / "dataset_lift.hdf5").read_bytes() == old
    with h5py.File(job.dataset) as file:
        assert file["data"].attrs["env_args"] == '{"env_name": "lift", "type": 2}'
        assert file["data"].attrs["total"] == 15


@pytest.mark.parametrize("said", [np.uint64(2**64 - 1), np.int64(2**62), np.int64(-1)])
def test_an_episode_with_an_impossible_number_of_steps_runs_again(tmp_path, job, said):
    job.finish(0, 1)
    job.consolidate()
    with h5py.File(job.dataset, "r+") as file:
        file["data/demo_1"].attrs["num_samples"] = said
    job.finish(2)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1), (2, 3))
    assert any(f"an episode says that it has {said} control steps" in note for note in recovery.notes)
    assert job.recorded() == {"dataset_lift.hdf5": [0, 2]}


def test_an_unreadable_dataset_is_set_aside_and_its_episodes_run_again(tmp_path, job):
    job.finish(0, 1)
    job.consolidate()
    job.dataset.write_bytes(b"")
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ()
    assert job.committed() == {}
    assert job.set_aside() == {"dataset_lift.hdf5", "episode_results_rank0.jsonl"}
    assert any("demo_0 to demo_1 had a commit line" in note for note in recovery.notes)


def test_arrays_that_have_vanished_are_recorded_again(tmp_path, job):
    job.finish(0, 1)
    job.part(1).unlink()
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 1),)
    assert set(job.committed()) == {0}


def test_a_recording_other_than_the_committed_one_is_set_aside(tmp_path, job):
    job.commit(job.line(0))
    job.write_part(job.line(0, length=9), commit="")
    assert recover(tmp_path).jobs[0].finished == ()
    assert "e000000.h5" in job.set_aside()
    assert job.recorded() == {}


def test_different_results_of_one_episode_stay_for_a_person_to_look_at(tmp_path, job):
    other = JobOnDisk(tmp_path, dataset="dataset_lift_rank1.hdf5")
    job.finish(0)
    job.consolidate()
    line = other.line(0, length=9, rank=1)
    other.write_part(line)
    other.commit(line, rank=1)
    other.consolidate()
    before = snapshot(tmp_path)
    assert recover(tmp_path).jobs[0].finished == ((0, 1),)
    assert snapshot(tmp_path) == before


def test_an_episode_that_two_ranks_recorded_alike_is_kept_once(tmp_path, job):
    other = JobOnDisk(tmp_path, dataset="dataset_lift_rank1.hdf5")
    job.finish(0)
    job.consolidate()
    line = other.line(0, rank=1)
    other.write_part(line)
    other.commit(line, rank=1)
    other.consolidate()
    assert recover(tmp_path).jobs[0].finished == ((0, 1),)
    assert job.recorded() == {"dataset_lift.hdf5": [0]}


@pytest.mark.parametrize("has_part", [False, True])
def test_of_copies_that_are_all_elsewhere_one_is_kept(tmp_path, job, has_part):
    line = job.line(0)
    for rank in (1, 2):
        other = JobOnDisk(tmp_path, dataset=f"dataset_lift_rank{rank}.hdf5")
        other.write_part(line)
        other.consolidate()
    if has_part:
        job.write_part(line)
    job.commit(line)
    assert recover(tmp_path).jobs[0].finished == ((0, 1),)
    assert job.recorded() == {"dataset_lift.hdf5" if has_part else "dataset_lift_rank1.hdf5": [0]}
    assert job.set_aside() == set()


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


# Orphans: recorded, but not committed


def test_an_episode_whose_process_died_before_the_commit_line_is_adopted(tmp_path, job):
    job.finish(0)
    job.write_part(job.line(1, rank=3))
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 2),)
    assert job.committed()[1] == job.line(1, rank=3)
    assert job.recorded() == {"dataset_lift.hdf5": [0, 1]}
    assert any("adopted demo_1" in note for note in recovery.notes)
    assert recover(tmp_path).notes == ()


def test_episodes_of_a_dataset_are_adopted_when_the_commit_file_is_lost(tmp_path, job):
    lines = job.finish(0, 1)
    job.consolidate()
    (job.directory / "episode_results_rank0.jsonl").unlink()
    assert recover(tmp_path).jobs[0].finished == ((0, 2),)
    assert list(job.committed().values()) == lines


FOREIGN = {
    "another job": ({"job": "push"}, "of another plan"),
    "another seed": ({"seed": 4}, "of another plan"),
    "another index": ({"episode_index": 2}, "of another plan"),
    "another configuration": ({"config_hash": "wrong"}, "another hash"),
    "no provenance": ({"provenance": "not JSON"}, "another hash"),
    "no line": ({"commit": ""}, "carries none"),
    "a line of another episode": ({"commit": "other"}, "of another episode"),
}


@pytest.mark.parametrize(("attributes", "reason"), FOREIGN.values(), ids=FOREIGN)
def test_a_recording_that_does_not_belong_to_the_plan_is_set_aside(tmp_path, job, attributes, reason):
    if attributes.get("commit"):
        attributes = {"commit": line_text(job.line(3))}
    job.write_part(job.line(1), **attributes)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ()
    assert job.committed() == {}
    assert job.set_aside() == {"e000001.h5"}
    assert any(reason in note for note in recovery.notes)


def test_an_episode_beyond_the_plan_is_set_aside(tmp_path, job):
    job.write_part(job.line(4))
    assert recover(tmp_path).jobs[0].finished == ()
    assert job.set_aside() == {"e000004.h5"}


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n"], ids=["empty", "only a signature"])
def test_an_orphan_that_is_damaged_is_set_aside(tmp_path, job, content):
    job.write_part(job.line(1)).write_bytes(content)
    assert recover(tmp_path).jobs[0].finished == ()
    assert job.set_aside() == {"e000001.h5"}


def test_an_orphan_of_wrong_arrays_is_set_aside(tmp_path, job):
    change_one_value(job.write_part(job.line(1)), 1)
    assert recover(tmp_path).jobs[0].finished == ()
    assert job.committed() == {}


def test_a_line_cannot_send_an_episode_out_of_the_jobs_directory(tmp_path, job):
    job.finish(0, dataset_file="../../stolen.hdf5")
    recover(tmp_path)
    assert job.recorded() == {"dataset_lift.hdf5": [0]}


def test_what_is_set_aside_never_replaces_what_was_before(tmp_path, job):
    for content in (b"first", b"second"):
        job.write_part(job.line(1)).write_bytes(content)
        recover(tmp_path)
    assert job.set_aside() == {"e000001.h5", "e000001.1.h5"}


# Errors that run again


@pytest.mark.parametrize("is_consolidated", [False, True])
def test_errors_run_again_where_that_is_asked_for(tmp_path, job, is_consolidated):
    job.finish(0, 2)
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    if is_consolidated:
        job.consolidate()
    assert recover(tmp_path).jobs[0].finished == ((0, 3),)
    recovery = recover(tmp_path, retry_errors=True)
    assert recovery.jobs[0].finished == ((0, 1), (2, 3))
    assert job.recorded() == {"dataset_lift.hdf5": [0, 2]}
    assert job.committed()[1].outcome == "error"
    hdf5.verify_episodes(job.directory / "set_aside" / "e000001.h5", [1])
    # The retry that was asked for is still due if the program dies before it, once the attempt has begun.
    begin_attempt(tmp_path, 2, recovery, retry_errors=True)
    assert recover(tmp_path, attempt=3) == dataclasses.replace(recovery, notes=())


def test_a_result_that_took_the_place_of_an_error_is_adopted_and_does_not_run_again(tmp_path, job):
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    recover(tmp_path, retry_errors=True)
    job.write_part(job.line(1, length=7, attempt=2))
    assert recover(tmp_path, retry_errors=True, attempt=3).jobs[0].finished == ((1, 2),)
    assert job.committed()[1] == job.line(1, length=7, attempt=2)
    assert job.recorded() == {"dataset_lift.hdf5": [1]}


def test_another_recording_of_the_same_attempt_takes_no_errors_place(tmp_path, job):
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    job.consolidate()
    job.write_part(job.line(1, length=7))
    assert recover(tmp_path).jobs[0].finished == ((1, 2),)
    assert job.committed()[1].outcome == "error"
    assert job.recorded() == {"dataset_lift.hdf5": [1]}
    assert job.set_aside() == {"e000001.h5"}


@pytest.mark.parametrize("earlier_is_part", [False, True])
def test_of_two_results_beside_an_error_the_earlier_attempts_is_adopted_whatever_its_file(tmp_path, earlier_is_part):
    job = JobOnDisk(tmp_path)
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    recover(tmp_path, retry_errors=True)
    earlier, later = job.line(1, length=7, attempt=2), job.line(1, length=9, attempt=3)
    in_dataset, in_part = (later, earlier) if earlier_is_part else (earlier, later)
    job.write_part(in_dataset)
    job.consolidate()
    job.write_part(in_part)
    assert recover(tmp_path, attempt=4).jobs[0].finished == ((1, 2),)
    assert job.committed()[1] == earlier
    assert job.recorded() == {"dataset_lift.hdf5": [1]}
    assert read_attributes(job.dataset, 1)["checksum"] == earlier.checksum
    assert recover(tmp_path, attempt=4).notes == ()


def test_an_error_that_was_not_committed_runs_again_too(tmp_path, job):
    job.write_part(job.line(1, outcome=Outcome.ERROR))
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == ()
    assert job.committed() == {}
    assert job.set_aside() == {"e000001.h5"}


def test_errors_without_recordings_run_again_too(tmp_path, job):
    job.commit(*(job.line(index, checksum=None) for index in (0, 1)))
    job.commit(job.line(2, outcome=Outcome.ERROR, checksum=None))
    assert recover(tmp_path).jobs[0].finished == ((0, 3),)
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == ((0, 2),)


# Jobs that are limited by steps


def test_a_job_limited_by_steps_that_did_not_end_starts_anew(tmp_path, job):
    job.finish(0, 1)
    job.consolidate()
    job.write_part(job.line(2))
    job.report(ReportedStatus.INTERRUPTED)
    recovery = recover(tmp_path, planned(num_episodes=None, num_steps=100), attempt=2)
    assert (len(recovery.left()), recovery.jobs[0].finished) == (1, ())
    assert {path.name for path in job.directory.iterdir()} == {"set_aside"}
    assert job.set_aside() == {
        "attempt_1/dataset_lift.hdf5",
        "attempt_1/e000002.h5",
        "attempt_1/episode_results_rank0.jsonl",
        "attempt_1/job_report_rank0.json",
    }


def test_a_job_limited_by_steps_that_ended_is_left_alone(tmp_path, job):
    job.finish(0, 1)
    job.consolidate()
    job.report()
    before = snapshot(tmp_path)
    assert not recover(tmp_path, planned(num_episodes=None, num_steps=100)).left()
    assert snapshot(tmp_path) == before


def test_a_job_limited_by_steps_that_ended_on_one_rank_but_not_on_another_starts_anew(tmp_path, job):
    job.finish(0)
    job.report()
    job.report(ReportedStatus.INTERRUPTED, rank=1)
    assert recover(tmp_path, planned(num_episodes=None, num_steps=100)).left()
    assert job.committed() == {}


def test_a_job_whose_policy_limits_it_by_steps_starts_anew(tmp_path, job):
    job.finish(0)
    job.report(ReportedStatus.INTERRUPTED, env_steps=7)
    assert recover(tmp_path, planned(num_episodes=None)).jobs[0].finished == ()
    assert job.committed() == {}


def test_a_job_limited_by_steps_with_damaged_recordings_starts_anew(tmp_path, job):
    job.finish(0, 1)
    job.consolidate()
    job.report()
    change_one_value(job.dataset, 0)
    recovery = recover(tmp_path, planned(num_episodes=None, num_steps=100))
    assert (len(recovery.left()), recovery.jobs[0].finished) == (1, ())
    assert job.committed() == {}


# Parts of ranks that died while others finished the job


def test_committed_parts_are_consolidated_at_the_end_of_a_run_and_others_stay(tmp_path, job):
    job.finish(0, 1)
    job.write_part(job.line(2))
    job.commit(job.line(3))
    job.write_part(job.line(3, length=9))
    notes, loss = consolidate_leftovers(job.directory, planned().name)
    assert job.recorded() == {"dataset_lift.hdf5": [0, 1], "e000002.h5": [2], "e000003.h5": [3]}
    assert len(notes) == 3
    assert loss == "the recordings of demo_3 are damaged or gone since they finished; --resume runs them again"
    assert consolidate_leftovers(tmp_path / "no job", planned().name) == ([], None)


# Size


class CountingFile(h5py.File):
    """A file of HDF5 that counts how many were opened."""

    opened = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        type(self).opened += 1
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("left", ["no lines", "lines", "whole parts beside the dataset"])
def test_repairing_more_episodes_opens_no_more_of_them_with_the_library(tmp_path, monkeypatch, left):
    """It takes a millisecond to open a file in that way and to read all of its attributes."""
    opened = []
    for number in (3, 12):
        job = JobOnDisk(tmp_path / str(number))
        lines = [job.line(index) for index in range(number)]
        parts = [job.write_part(line) for line in lines]
        if left != "no lines":
            job.commit(*lines)
        if left == "whole parts beside the dataset":
            contents = [part.read_bytes() for part in parts]
            job.consolidate()
            job.part(0).parent.mkdir()
            for part, content in zip(parts, contents, strict=True):
                part.write_bytes(content)
        with monkeypatch.context() as patches:
            patches.setattr(h5py, "File", CountingFile)
            CountingFile.opened = 0
            (recovered,) = recover(tmp_path / str(number), planned(num_episodes=20)).jobs
        assert recovered.finished == ((0, number),)
        opened.append(CountingFile.opened)
    # Parts that are in the dataset already are opened once, to compare.
    assert opened[1] - opened[0] == (9 if left == "whole parts beside the dataset" else 0)


def test_ten_times_the_episodes_are_looked_at_in_about_ten_times_the_time(tmp_path, job):
    text = line_text(job.line(0, checksum=None, dataset_file=None)).replace('"episode_index": 0', '"episode_index": %d')

    def look(num_episodes: int) -> None:
        job.commit().write_text("".join(f"{text % index}\n" for index in range(num_episodes)))
        (recovered,) = recover(tmp_path, planned(num_episodes=num_episodes)).jobs
        assert recovered.finished == ((0, num_episodes),)

    assert_grows_linearly(look)


def test_set_aside_keeps_both_of_two_files_of_one_name(tmp_path):
    for content in ("one", "two"):
        (tmp_path / "lines.jsonl").write_text(content)
        move_aside(tmp_path / "lines.jsonl", tmp_path / "aside")
    assert sorted(path.read_text() for path in (tmp_path / "aside").iterdir()) == ["one", "two"]
