"""The page about the tasks is what its command writes."""

import re

from PIL import Image

from benchmarks.artifacts import task_catalog
from tests.environments.building import ALL_ENVIRONMENTS


def test_the_pages_are_up_to_date():
    for path, text in task_catalog.pages().items():
        assert path.read_text() == text, f"{path.name}: run MUJOCO_GL=egl python -m benchmarks.artifacts.task_catalog"


def test_every_task_has_a_small_picture_and_its_numbers():
    for name in ALL_ENVIRONMENTS:
        text = (task_catalog.PAGES / f"{name}.md").read_text()
        assert re.search(r"^\| scripted.* \| \d+/200, ", text, re.MULTILINE), name
        picture = task_catalog.PICTURES / f"{name}.jpg"
        assert picture.stat().st_size < 60_000
        with Image.open(picture) as opened:
            assert opened.size == task_catalog.SIZE


def test_the_measured_success_is_what_is_promised():
    """At least 95 % for the scripted policy and at most 2 % for doing nothing, in every row."""
    rows = [
        line.split("|") for line in task_catalog.MEASURED.read_text().splitlines() if "%" in line and "/200" in line
    ]
    rates = [(cells[2].strip(), float(cells[5].split("%")[0])) for cells in rows]
    assert min(rate for policy, rate in rates if policy == "scripted") >= 95
    assert max(rate for policy, rate in rates if policy == "zero_action") <= 2
