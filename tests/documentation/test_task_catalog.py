"""The page about the tasks is what its command writes."""

import importlib.util
import re

import pytest
from PIL import Image

from tests.end_to_end.launching import ROOT
from tests.environments.building import ALL_ENVIRONMENTS


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("task_catalog", ROOT / "benchmarks" / "task_catalog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date(generator):
    for path, text in generator.pages().items():
        assert path.read_text() == text, f"{path.name}: run MUJOCO_GL=egl python benchmarks/task_catalog.py"


def test_every_task_has_a_small_picture_and_its_numbers(generator):
    for name in ALL_ENVIRONMENTS:
        text = (generator.PAGES / f"{name}.md").read_text()
        assert re.search(r"^\| scripted.* \| \d+/200, ", text, re.MULTILINE), name
        picture = generator.PICTURES / f"{name}.jpg"
        assert picture.stat().st_size < 60_000
        with Image.open(picture) as opened:
            assert opened.size == generator.SIZE


def test_the_measured_success_is_what_is_promised(generator):
    """At least 95 % for the scripted policy and at most 2 % for doing nothing, in every row."""
    rows = [line.split("|") for line in generator.MEASURED.read_text().splitlines() if "%" in line and "/200" in line]
    rates = [(cells[2].strip(), float(cells[5].split("%")[0])) for cells in rows]
    assert min(rate for policy, rate in rates if policy == "scripted") >= 95
    assert max(rate for policy, rate in rates if policy == "zero_action") <= 2
