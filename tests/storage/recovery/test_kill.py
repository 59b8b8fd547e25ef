"""A process that writes episodes is killed at any moment: what it committed is there, whole."""

import random
import subprocess
import sys
import time

from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import verify_episodes
from isaaclab_arena.storage.ledger import read_commits

WRITER = """
import itertools, pathlib, sys
import numpy as np
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.storage.ledger import CommitWriter, commit_line
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.episode_file import RecordedEpisode

directory, first = pathlib.Path(sys.argv[1]), int(sys.argv[2])
writer = CommitWriter(directory, 0)
for index in itertools.count(first):
    arrays = {"actions": np.full((200, 50), index, np.float32), "camera_obs/a": np.full((50, 64, 64, 3), 7, np.uint8)}
    name = episode_file_name(index)
    crc = write_episode(
        directory / name, RecordedEpisode(episode_index=index, arrays=arrays, attributes={}, env_args={})
    )
    record = EpisodeRecord(
        episode=Episode(job="lift", episode_index=index, seed=0), env_id=0, outcome=Outcome.SUCCESS, success=True,
        length=200, episode_return=0.0, termination="terminated", conditions={}, language_instruction="",
    )
    context = {"rank": 0, "episode_in_env": 0, "timestamp": "", "episode_file": name, "checksum": crc}
    writer.write(commit_line(record, wall_s=0.0, **context))
"""


def test_no_committed_episode_is_lost_when_the_writer_is_killed(tmp_path):
    generator = random.Random(0)
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(life * 100_000)])
        commits = tmp_path / ("episode_results_rank0" + (f"_life{life}" if life else "") + ".jsonl")
        deadline = time.monotonic() + 60
        while not (commits.exists() and commits.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.2))
        process.kill()
        process.wait()
    log = read_commits(tmp_path, "lift")
    assert len({line.episode_index // 100_000 for line in log.lines}) == 4
    assert log.problems == ()
    for line in log.lines:
        verify_episodes(tmp_path / str(line.episode_file), [line.episode_index])
    done = consolidate(sorted(tmp_path.glob("e*.h5")), tmp_path / "dataset_lift.hdf5")
    assert set(done.episode_indices) >= {line.episode_index for line in log.lines}
    assert done.damaged == ()
