"""docs/users/lerobot.md shows commands that work one after the other."""

import json
import tomllib

import numpy as np

from isaaclab_arena.results import list_episodes, read_episode
from tests.documentation.reading import as_arguments, commands_of
from tests.end_to_end.launching import ROOT, run

DOCUMENT = (ROOT / "docs" / "users" / "lerobot.md").read_text()


def outcomes(directory):
    (path,) = directory.glob("*/episode_results_rank0.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    return sorted(
        (line["episode_index"], line["outcome"], line["episode_length"], line["episode_return"]) for line in lines
    )


def declare_policies(directory):
    """Write what installing the package leaves behind, so that policies of this tree are known by name."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["isaaclab_arena.policies"]
    info = directory / "policies_of_this_tree-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: policies-of-this-tree\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[isaaclab_arena.policies]", *lines]))


def test_the_commands_run_one_after_the_other(tmp_path):
    declare_policies(tmp_path)
    for line in commands_of(DOCUMENT):
        path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
        finished = run(as_arguments(line), timeout_s=200, directory=tmp_path, extra=path)
        assert finished.returncode == 0, finished.stderr
    outputs = tmp_path / "outputs"
    assert len(outcomes(outputs / "played")) == 3
    assert outcomes(outputs / "played") == outcomes(outputs / "demos")
    (source,), (back,) = (list((outputs / directory).glob("*/dataset_*.hdf5")) for directory in ("demos", "back"))
    assert list_episodes(back) == [0, 1, 2]
    for index in range(3):
        recorded, found = read_episode(source, index).arrays, read_episode(back, index).arrays
        assert {"actions", "obs/robot_joint_pos", "camera_obs/wrist_cam_rgb"} <= found.keys()
        assert all(np.array_equal(array, recorded[name]) for name, array in found.items())
