"""Programs that make what the documents show."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.artifacts import reference_motion
from benchmarks.artifacts.report_pictures import MOST_BYTES, WIDTH, photograph, shown_runs
from isaaclab_arena.environments.tasks.track_motion import read_motion
from isaaclab_arena.environments.tasks.walk_humanoid import FEET, HUMANOID, KEYPOINTS
from isaaclab_arena.errors import ArenaError
from tests.browser.chromium import executable


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


PICTURES = Path("docs/images")


def test_a_page_is_shown_from_its_top_in_its_colours(tmp_path):
    executable()
    page = tmp_path / "page.html"
    page.write_text("<body style='margin:0;background:#d55e00'><p style='margin-top:900px'>below</p>")
    photograph(page, tmp_path / "page.png", height=300)
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (WIDTH, 300)
        assert picture.convert("RGB").getcolors() == [(WIDTH * 300, (0xD5, 0x5E, 0x00))]


def test_a_picture_that_is_too_large_for_the_documents_is_refused(tmp_path):
    executable()
    page = tmp_path / "page.html"
    # Of few colours, because finding the ones to keep of a million takes a minute.
    noise = np.random.default_rng(0).integers(0, 4, (1000, 1200, 3), dtype=np.uint8) * 85
    Image.fromarray(noise).save(tmp_path / "noise.png")
    page.write_text("<img src=noise.png>")
    with pytest.raises(ArenaError, match=f"at most {MOST_BYTES} are wanted"):
        photograph(page, tmp_path / "page.png", height=1000)


def test_the_pictures_of_the_documents_are_those_that_the_program_makes():
    for shown in shown_runs(Path("comparison.yaml")):
        with Image.open(PICTURES / f"report_{shown.name}.png") as picture:
            assert picture.size == (WIDTH, shown.height)
        assert (PICTURES / f"report_{shown.name}.png").stat().st_size <= MOST_BYTES
