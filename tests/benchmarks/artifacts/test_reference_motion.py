import numpy as np

from benchmarks.artifacts import reference_motion
from isaaclab_arena.environments.tasks.track_motion import read_motion
from isaaclab_arena.environments.tasks.walk_humanoid import FEET, HUMANOID, KEYPOINTS


def test_the_motion_that_comes_along_is_the_one_that_the_program_writes():
    made = reference_motion.written(reference_motion.frames()[::30]).splitlines()
    lines = reference_motion.MOTION.read_text(encoding="utf-8").splitlines()
    committed = [lines[0], *lines[1::30]]
    assert made[0] == committed[0]
    for ours, theirs in zip(made[1:], committed[1:], strict=True):
        # Times differ where frames are left out, and the last digit may.
        assert np.allclose(_numbers(ours)[1:], _numbers(theirs)[1:], atol=2e-5)


def test_the_soles_stay_where_they_are_and_nothing_moves_faster_than_a_person():
    motion = read_motion(reference_motion.MOTION, HUMANOID, KEYPOINTS, 0.02)
    feet = motion.keypoints[:, [KEYPOINTS.index(foot) for foot in FEET]]
    assert np.abs(feet - feet[0]).max() < 1e-3
    assert np.abs(motion.joint_velocity).max() < 12
    assert motion.root_position[:, 2].min() < 0.56


def test_it_begins_and_ends_at_rest_in_the_same_posture():
    motion = read_motion(reference_motion.MOTION, HUMANOID, KEYPOINTS, 0.02)
    assert np.allclose(motion.joint_position[0], motion.joint_position[-1], atol=1e-4)
    assert np.abs(motion.joint_velocity[[0, -1]]).max() < 1e-3


def _numbers(line: str) -> list[float]:
    return [float(value) for value in line.split(",")]
