from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.artifacts.report_pictures import MOST_BYTES, WIDTH, photograph, shown_runs
from isaaclab_arena.errors import ArenaError
from tests.browser.chromium import executable

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
