"""A disk that is full: every write says so, and what was there stays whole."""

import subprocess
import sys

from isaaclab_arena.storage.episodes import list_episodes, verify_episodes

# A limit on the size of files stands for a full disk: it fails in the middle of a write, too.
SETUP = """
import pathlib, resource, sys
import numpy as np
from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.ledger import CommitWriter
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.episode_file import RecordedEpisode

directory = pathlib.Path(sys.argv[1])

def write(index):
    arrays = {"actions": np.full((3000, 8), index, np.float32)}
    episode = RecordedEpisode(episode_index=index, arrays=arrays, attributes={}, env_args={})
    write_episode(directory / episode_file_name(index), episode)

def limit(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

def fails(action):
    try:
        action()
    except StorageError as error:
        print(error)
    else:
        raise SystemExit("nothing was raised")
"""
EPISODE = "write(0); limit(50_000); fails(lambda: write(1))"
LINE = """
lines = CommitWriter(directory, rank=0)
limit(10)
lines.write("12345")
fails(lambda: lines.write("67890"))
"""
DATASET = """
for index in range(3): write(index)
parts = sorted(directory.glob("e*.h5"))
limit(150_000)
fails(lambda: consolidate(parts, directory / "dataset.hdf5"))
"""


def run(script: str, directory) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script, str(directory)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_an_episode_that_does_not_fit_leaves_no_file(tmp_path):
    assert "cannot write" in run(EPISODE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["e000000.h5"]
    verify_episodes(tmp_path / "e000000.h5", [0])


def test_a_line_that_does_not_fit_is_an_error(tmp_path):
    assert "only 4 of 6 bytes fitted" in run(LINE, tmp_path)


def test_a_dataset_that_does_not_fit_leaves_the_episodes_where_they_are(tmp_path):
    assert "File too large" in run(DATASET, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"e00000{index}.h5" for index in range(3)]
    assert all(list_episodes(tmp_path / f"e00000{index}.h5") == [index] for index in range(3))
