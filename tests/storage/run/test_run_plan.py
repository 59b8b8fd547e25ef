"""The plan of a run, its attempts and its lock."""

import dataclasses
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage.ledger import (
    EpisodeVerification,
    JobState,
    RunLock,
    RunVerification,
    attempt_numbers,
    attempt_path,
    policy_batches_in_effect,
    read_attempt,
    read_attempts,
    read_run_plan,
    read_settled,
    read_verification,
    settle,
    write_attempt,
    write_run_plan,
    write_verification,
)
from tests.results.evidence import attempt, plan_entry, planned, run_plan

PLAN = run_plan(
    plan_entry("a", seed=2**62, num_envs=4),
    plan_entry(
        "b",
        index=1,
        rank=None,
        policy_config_dict={"replay_file_path": "x"},
        policy_config={"replay_file_path": "x", "num_envs": 1},
        num_episodes=5,
        status=JobStatus.COMPLETED,
    ),
    world_size=2,
    command_line=("eval_runner", "--eval_jobs_config", "jobs.json"),
    versions={"torch": "2.13.0"},
)


def test_a_plan_comes_back_as_it_was_and_is_never_written_over(tmp_path):
    with pytest.raises(ConfigError, match="not the output"):
        read_run_plan(tmp_path)
    write_run_plan(tmp_path, PLAN)
    with pytest.raises(StorageError, match=r"run\.json"):
        write_run_plan(tmp_path, dataclasses.replace(PLAN, run_id="other"))
    assert read_run_plan(tmp_path) == PLAN


BROKEN = {
    "": "empty",
    "a pipe": r"run\.json",
    '{"schema_ver': "JSON",
    "[]": "not written by",
    '{"jobs": []}': "not written by",
    '{"schema_version": 0}': "version 0",
    '{"schema_version": 1}': "run_id",
}


@pytest.mark.parametrize(("content", "word"), BROKEN.items())
def test_a_foreign_or_broken_plan_is_named(tmp_path, content, word):
    if content == "a pipe":
        os.mkfifo(tmp_path / "run.json")
    else:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=word):
        read_run_plan(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", "many"), *(("name", name) for name in ("../elsewhere", "/etc", "", "a\nb", "logs"))]
)
def test_a_value_that_a_job_cannot_have_is_named_with_its_place(tmp_path, key, value):
    path = write_run_plan(tmp_path, PLAN)
    document = json.loads(path.read_text())
    document["jobs"][1]["config"][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=rf"jobs.1.*config\.{key}"):
        read_run_plan(tmp_path)


def test_attempts_come_back_in_order_and_are_never_written_over(tmp_path):
    first = attempt(1, jobs=(JobState(job="lift", finished=((0, 3), (7, 8))), JobState(job="reach")))
    for each in (attempt(10, retry_errors=True), first):
        write_attempt(tmp_path, each)
    with pytest.raises(StorageError):
        write_attempt(tmp_path, attempt(1, world_size=2))
    with pytest.raises(StorageError, match=r"attempt_3\.json"):
        read_attempt(tmp_path, 3)
    for name in ("attempt_0.json", "attempt_\u0663.json", f"attempt_{'9' * 200}.json", "attempt_1.json.bak"):
        (tmp_path / "attempts" / name).touch()
    assert attempt_numbers(tmp_path) == [1, 10]
    assert read_attempts(tmp_path) == ([first, attempt(10, retry_errors=True)], [])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "directory"),
        ("", "empty"),
        ("[]", "not written by"),
        ('{"schema_version": 9}', "version 9"),
        ('{"schema_version": 1}', "number"),
        ("theirs", "another run"),
    ],
)
def test_an_attempt_that_cannot_be_read_or_of_another_run_is_told_and_no_obstacle(tmp_path, content, word):
    write_attempt(tmp_path, attempt(2, run="ours"))
    path = attempt_path(tmp_path, 1)
    if content is None:
        path.mkdir()
    elif content == "theirs":
        write_attempt(tmp_path, attempt(1, run="theirs"))
    else:
        path.write_text(content)
    attempts, [problem] = read_attempts(tmp_path, "ours")
    assert attempts == [attempt(2, run="ours")]
    assert str(path) in problem
    assert word in problem
    assert attempt_numbers(tmp_path) == [1, 2]


def test_the_batch_of_a_job_is_what_an_attempt_says_and_before_that_what_was_settled(tmp_path):
    jobs = [planned("lift"), planned("reach"), planned("push")]
    settle(tmp_path / "lift", 8)
    assert policy_batches_in_effect(tmp_path, jobs, [attempt(1, jobs=(JobState(job="lift"),))]) == {"lift": 8}
    said = [attempt(1), attempt(2, jobs=(JobState(job="lift", policy_batch=4), JobState(job="reach", policy_batch=16)))]
    assert policy_batches_in_effect(tmp_path, jobs, [*said, attempt(3)]) == {"lift": 4, "reach": 16}
    (tmp_path / "push").mkdir()
    (tmp_path / "push" / "settled.json").write_text("{")
    anew = attempt(3, jobs=(JobState(job="lift", is_rerun=True), JobState(job="reach", is_rerun=True)))
    assert policy_batches_in_effect(tmp_path, jobs, [*said, anew]) == {"lift": 8}


def test_another_run_is_refused_until_all_ranks_of_the_first_have_released_the_directory(tmp_path):
    lock = RunLock(tmp_path).hold(alone=True)
    with pytest.raises(ConfigError, match="another run"):
        RunLock(tmp_path).hold(alone=True)
    lock.hold(alone=False)
    with RunLock(tmp_path).hold(alone=False):
        lock.release()
        lock.release()
        with pytest.raises(ConfigError, match="another run"):
            RunLock(tmp_path).hold(alone=True)
    RunLock(tmp_path).hold(alone=True).release()


HOLD_AND_WAIT = """
import subprocess, sys, time
from pathlib import Path
from isaaclab_arena.storage.ledger import RunLock
lock = RunLock(Path(sys.argv[1])).hold(alone=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free_at_once_though_a_program_that_it_started_lives(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD_AND_WAIT, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        with pytest.raises(ConfigError):
            RunLock(tmp_path).hold(alone=True)
        holder.kill()
    try:
        RunLock(tmp_path).hold(alone=True).release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    RunLock(tmp_path).hold(alone=True).hold(alone=False).release()
    assert "cannot be locked" in caplog.text


@pytest.mark.parametrize("has_links", [True, False])
def test_what_the_first_rank_settles_counts_also_on_a_disk_without_links(tmp_path, monkeypatch, has_links):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    assert read_settled(tmp_path) is None
    assert settle(tmp_path, 8) == 8
    assert settle(tmp_path, 16) == 8
    assert json.loads((tmp_path / "settled.json").read_text()) == {"policy_batch": 8, "schema_version": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["settled.json"]


BITWISE = EpisodeVerification(job="lift", episode_index=3, is_same=True, is_bitwise=True, verdict="bitwise")
FOUND = RunVerification(
    verified_at="2026-01-02T03:04:05.000+00:00",
    sources={"lift/episode_results_rank0.jsonl": 12},
    num_episodes=1_200,
    problems=(),
    episodes=(BITWISE, dataclasses.replace(BITWISE, episode_index=7)),
    is_sound=True,
)


def test_what_was_found_is_read_again_and_the_last_one_counts(tmp_path):
    assert read_verification(tmp_path) is None
    write_verification(tmp_path, dataclasses.replace(FOUND, is_sound=False))
    write_verification(tmp_path, FOUND)
    assert read_verification(tmp_path) == FOUND
    assert [path.name for path in tmp_path.iterdir()] == ["verification.json"]
    for name, read in (("settled", read_settled), ("verification", read_verification)):
        (tmp_path / f"{name}.json").write_text("{")
        with pytest.raises(ConfigError, match=rf"{name}\.json"):
            read(tmp_path)


ENDED = dataclasses.replace(BITWISE, job="reach", is_bitwise=False, verdict="ended the same")
MANY = tuple(dataclasses.replace(BITWISE, episode_index=index) for index in range(13))
SENTENCES = {
    "sound": ({}, "the files of 1,200 episodes are whole; 2 of 2 episodes repeated bit for bit (lift 3, 7)"),
    "twelve": ({"episodes": MANY[:12]}, "lift 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)"),
    "more": ({"episodes": MANY}, "10, 11; …)"),
    "defects": ({"problems": ("demo_2 is damaged", "more")}, "defects in the files: demo_2 is damaged, and 1 more; "),
    "other": (
        {"episodes": (ENDED, dataclasses.replace(ENDED, is_same=False))},
        "; 1 ended the same (reach 3); reach 3",
    ),
    "files alone": ({"episodes": ()}, "; no episode ran again"),
}


@pytest.mark.parametrize(("changes", "words"), SENTENCES.values(), ids=SENTENCES)
def test_what_was_found_is_a_sentence(changes, words):
    assert words in dataclasses.replace(FOUND, **changes).in_words()
