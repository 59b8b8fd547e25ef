"""The directories that ranks make on their nodes."""

import subprocess
import sys

from isaaclab_arena.evaluation.cluster.rank_process import make_own_directory, remove_directories_of_the_dead
from tests.end_to_end.launching import ROOT

DIES = """
import os, pathlib, sys
from isaaclab_arena.evaluation.cluster.rank_process import make_own_directory
(make_own_directory(pathlib.Path(sys.argv[1]), 3) / "episode").touch()
os._exit(9)
"""


def test_a_rank_removes_what_killed_ranks_of_its_node_have_left_and_nothing_else(tmp_path):
    assert subprocess.run([sys.executable, "-c", DIES, tmp_path], cwd=ROOT, check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    mine = make_own_directory(tmp_path, 0)
    machine = left.name.split("_")[3]
    elsewhere = tmp_path / left.name.replace(machine, "00000000")
    elsewhere.mkdir()
    (tmp_path / "isaaclab_arena_ranking").mkdir()
    remove_directories_of_the_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, elsewhere.name, "isaaclab_arena_ranking"}
