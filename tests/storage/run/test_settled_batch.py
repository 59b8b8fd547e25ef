"""On how many env slots a job's policy is asked is settled once, by whoever comes first."""

import json
import os

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.ledger import SettledBatch, read_settled, settle


def test_nothing_is_settled_before_the_first_rank_comes(tmp_path):
    assert read_settled(tmp_path) is None
    assert settle(tmp_path, SettledBatch(policy_batch=8)).policy_batch == 8
    assert json.loads((tmp_path / "settled.json").read_text()) == {"policy_batch": 8, "schema_version": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["settled.json"]


def test_the_first_rank_counts(tmp_path):
    settle(tmp_path, SettledBatch(policy_batch=8))
    assert settle(tmp_path, SettledBatch(policy_batch=16)).policy_batch == 8
    assert [path.name for path in tmp_path.iterdir()] == ["settled.json"]


def test_a_disk_without_links_settles_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    assert settle(tmp_path, SettledBatch(policy_batch=4)).policy_batch == 4
    assert settle(tmp_path, SettledBatch(policy_batch=8)).policy_batch == 4


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "settled.json").write_text("{")
    with pytest.raises(ConfigError, match=r"settled.json: is not valid JSON"):
        settle(tmp_path, SettledBatch(policy_batch=4))
