"""Hashes of contents."""

import hashlib
import os
import socket
import time

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.contents import (
    UNKNOWN,
    Contents,
    changed_facts,
    changes,
    content_hash,
    one_hash,
    told_changes,
)

ONE, OTHER = "1" * 64, "2" * 64


def test_one_hash_stands_for_all_that_decides_what_a_policy_does_whatever_its_files_are_called():
    first = one_hash({"checkpoint_path model_300.pt": ONE, "agent_cfg_path agent.yaml": OTHER})
    assert first == one_hash({"checkpoint_path model_best.pt": ONE, "agent_cfg_path agent.yaml": OTHER})
    assert first != one_hash({"checkpoint_path model_300.pt": ONE, "agent_cfg_path agent.yaml": ONE})
    assert len(str(first)) == 64
    behind = Contents(policy={"server localhost:5555": UNKNOWN, "policy_config_yaml_path a.yaml": ONE})
    assert (one_hash({}), one_hash(behind.policy)) == (None, UNKNOWN)
    assert Contents(policy={"checkpoint_path a": ONE}).is_known
    assert not behind.is_known
    assert not Contents(environment={"robot arm.xml": UNKNOWN}).is_known


def test_each_change_is_told_with_what_it_was_and_what_it_is_and_nothing_differs_from_the_unknown():
    before = {"a": ONE, "gone": ONE, "package x": "x 1.0", "server": UNKNOWN, "other server": ONE}
    now = {"a": OTHER, "new": OTHER, "package x": "x 1.1", "server": ONE, "other server": UNKNOWN}
    assert [*changes(before, now)] == [
        ("a", "was 111111111111, is now 222222222222"),
        ("gone", "was 111111111111, is now not there"),
        ("new", "was not there, is now 222222222222"),
        ("package x", "was x 1.0, is now x 1.1"),
    ]


def test_a_file_is_known_by_the_sha_256_that_every_other_program_gives_and_a_link_by_what_it_leads_to(tmp_path):
    content = b"weights" * 500_000
    (tmp_path / "model.pt").write_bytes(content)
    (tmp_path / "link.pt").symlink_to("model.pt")
    (tmp_path / "nowhere.pt").symlink_to("gone.pt")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "up").symlink_to(tmp_path)
    assert content_hash(tmp_path / "model.pt") == hashlib.sha256(content).hexdigest()
    assert content_hash(tmp_path / "link.pt") == content_hash(tmp_path / "model.pt")
    assert content_hash(tmp_path / "nowhere.pt") == "absent"
    assert len(content_hash(tmp_path)) == 64


def test_a_directory_is_known_by_names_and_contents_wherever_it_lies(tmp_path):
    def made(name: str, files: dict[str, str]) -> str:
        for file, content in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return content_hash(tmp_path / name)

    files = {"config.json": "{}", "deep/model.safetensors": "weights"}
    first = made("first", files)
    assert made("second", dict(reversed(files.items()))) == first
    assert made("edited", {**files, "config.json": "{ }"}) != first
    assert made("more", {**files, "a": ""}) != first
    assert made("renamed", {"config.json": "{}", "deep/model2.safetensors": "weights"}) != first
    assert made("hidden", {**files, ".lock": "now", ".cache/lock": "now", "__pycache__/x.pyc": "b"}) == first
    assert made("run together", {"ab": "c"}) != made("apart", {"a": "bc"})


def test_what_is_no_regular_file_is_never_opened(tmp_path):
    # Opening a pipe without a writer would wait for ever.
    os.mkfifo(tmp_path / "pipe")
    assert content_hash(tmp_path / "pipe") == "no regular file"
    assert len(content_hash(tmp_path)) == 64
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert content_hash(tmp_path / "s") == "no regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"weights")
    path.chmod(0)
    with pytest.raises(StorageError, match=r"model\.pt"):
        content_hash(path)


def test_a_file_is_read_again_where_it_may_have_changed_even_if_size_and_time_are_kept(tmp_path, monkeypatch):
    path, sums, real, now = tmp_path / "model.pt", [], hashlib.sha256, time.time_ns
    monkeypatch.setattr(hashlib, "sha256", lambda *given: sums.append(given) or real(*given))
    path.write_bytes(b"weights")
    monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns)
    known = content_hash(path)
    assert (content_hash(path), len(sums)) == (known, 2)
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)
    for _ in range(2):
        assert (content_hash(path), len(sums)) == (known, 3)
    before = path.stat()
    # The clock of a file system may be as coarse as the ticks of the kernel.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(b"WEIGHTS")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content_hash(path) != known


def test_what_was_other_is_named_and_what_does_not_matter_or_was_not_recorded_is_not():
    same = {"cpu": "A", "same": "x"}
    before = {**same, "mujoco": "3.3.1", "config_hash": "1", "policy_type": "scripted", "gone": "2"}
    now = {**same, "mujoco": "4.0.0", "config_hash": "2", "policy_type": "replay", "new": "y"}
    assert changed_facts(before, now) == [("gone", "2", None), ("mujoco", "3.3.1", "4.0.0"), ("new", None, "y")]
    assert list(told_changes(before, now)) == ["gone was 2, is now absent", "mujoco was 3.3.1, is now 4.0.0"]
    assert changed_facts(now, now) == changed_facts({}, {}) == []
