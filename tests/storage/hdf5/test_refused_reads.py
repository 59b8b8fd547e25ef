"""HDF5 tells a read that the system refused by errors of many kinds; none of them is damage."""

import subprocess
import sys
from functools import partial

import pytest

from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from tests.end_to_end.launching import ROOT, environment
from tests.faults.system_trouble import trouble_variables
from tests.storage.recordings import recorded


def test_no_read_that_the_system_refuses_is_taken_for_damage(tmp_path):
    variables = trouble_variables(tmp_path)
    if variables is None:
        pytest.skip("the library that refuses calls of the system needs a C compiler, and there is no cc")
    datasets = []
    for compression in (Compression.NONE, Compression.GZIP):
        parts = [tmp_path / episode_file_name(index) for index in (0, 1)]
        for index, part in enumerate(parts):
            write_episode(part, recorded(index, conditions="{}"), compression)
        datasets.append(tmp_path / f"dataset_{compression}.hdf5")
        consolidate(parts, datasets[-1])
    read = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    command = [sys.executable, "-m", "tests.storage.hdf5.refused_reads", *map(str, datasets)]
    done = read(command, env=environment(variables))
    assert done.returncode == 0, done.stderr
    assert all(int(number) > 5 for number in done.stdout.split()), done.stdout
    assert len(done.stdout.splitlines()) == len(datasets)
