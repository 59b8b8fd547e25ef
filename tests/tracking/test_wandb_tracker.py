"""Tests of the files that W&B writes without a server, read back through W&B's own messages."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.registry import imported
from isaaclab_arena.tracking.watched_run import export_wandb
from tests.tracking.runs import finished_run

wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")

_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


@pytest.fixture(autouse=True, scope="module")
def _nobodys_account(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_BASE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("NETRC", str(tmp_path_factory.mktemp("home") / "netrc"))
        yield


def messages(file: Path) -> Iterator[Any]:
    """Yield the messages of a ``.wandb`` file: a log of records in blocks, as LevelDB writes it."""
    message = imported("wandb.proto.wandb_internal_pb2:Record")
    content, position, record = file.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while position + _HEADER.size <= len(content):
        if _BLOCK_BYTES - position % _BLOCK_BYTES < _HEADER.size:
            position += _BLOCK_BYTES - position % _BLOCK_BYTES
            continue
        _, size, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size + size
        record += content[position - size : position]
        if kind in (_WHOLE, _LAST):
            yield message.FromString(record)
            record = b""


class ReadBack:
    """What the files of one W&B run say."""

    def __init__(self, directory: Path) -> None:
        [self.directory] = (directory / "wandb").glob("offline-run-*")
        found = list(messages(next(self.directory.glob("run-*.wandb"))))
        run = next(each.run for each in found if each.HasField("run"))
        self.run_id, self.project, self.name = run.run_id, run.project, run.display_name
        self.config = {each.key: json.loads(each.value_json) for each in run.config.update}
        self.axes = {
            each.metric.name or each.metric.glob_name: each.metric.step_metric
            for each in found
            if each.HasField("metric")
        }
        self.history = [
            {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in record.history.item}
            for record in found
            if record.HasField("history")
        ]

    def points(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(line[name] for name in names) for line in self.history if names[0] in line]


def test_without_a_key_settings_rates_films_and_the_table_are_kept_in_files(tmp_path):
    [line] = export_wandb(finished_run(tmp_path / "run"), tmp_path / "there")
    # The process of W&B's that writes the files completes them before it ends.
    wandb.teardown()
    shown = ReadBack(tmp_path / "there")
    assert line == f"wandb sync {shown.directory}"
    assert (shown.run_id, shown.project, shown.name) == ("run", "isaaclab_arena", "run")
    assert shown.config["config_hash"] == "abc"
    assert shown.config["jobs"]["early"]["policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    assert "hush" not in str(shown.config)
    names = (f"early/{name}" for name in ("success_rate", "success_low", "success_high", "episodes"))
    [(rate, low, high, episodes)] = shown.points(*names)
    assert (rate, episodes) == (pytest.approx(2 / 3), 4)
    assert low < rate < high
    points = shown.points("checkpoints/lift_object/success_rate", "checkpoint_step")
    assert points == [(pytest.approx(2 / 3), 100), (1.0, 200)]
    axes = {"early/*": "early/episodes", "late.v2/*": "late.v2/episodes", "checkpoints/*": "checkpoint_step"}
    assert shown.axes.items() >= axes.items()
    [(kind, path, caption)] = shown.points("early/films/_type", "early/films/path", "early/films/caption")
    assert (kind, caption) == ("video-file", "early, episode 1: failure (viewport-env1-episode-1)")
    assert (shown.directory / "files" / path).stat().st_size > 0
    [(path,)] = shown.points("jobs/path")
    table = json.loads((shown.directory / "files" / path).read_text())
    assert [row[table["columns"].index("success_rate")] for row in table["data"]] == [pytest.approx(2 / 3), 1.0]
