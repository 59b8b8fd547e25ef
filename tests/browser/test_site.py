"""What the site of docs/ does in a browser: it finds, it fits on a phone, and no page but a reference is long."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, Page
from tests.end_to_end.launching import ROOT

SITE = ROOT / "site"
pytestmark = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs has not built the site")

FOUND = {
    "bring_your_policy/index": ("policy server", "own checkpoint", "0 %"),
    "bring_your_policy/exported_networks": ("torchscript", "onnx"),
    "bring_your_policy/gr00t": ("gr00t",),
    "bring_your_policy/lerobot": ("lerobot act",),
    "bring_your_policy/openpi": ("openpi", "websocket"),
    "bring_your_policy/rsl_rl": ("rsl_rl checkpoint",),
    "concepts/episodes": ("seed",),
    "concepts/equality": ("reproducible bitwise",),
    "how_to/cameras": ("wrist camera",),
    "how_to/compare": ("which policy is better", "how many episodes"),
    "how_to/distributed": ("torchrun",),
    "how_to/gymnasium": ("gymnasium",),
    "how_to/latency": ("latency",),
    "how_to/libero": ("libero",),
    "how_to/metaworld": ("metaworld",),
    "how_to/ray": ("ray", "kubernetes"),
    "how_to/resuming": ("resume",),
    "how_to/robots": ("robot mjcf",),
    "how_to/robustness": ("robustness",),
    "how_to/slurm": ("slurm",),
    "how_to/tasks": ("success criterion",),
    "how_to/tracking": ("weights and biases",),
    "how_to/training": ("ppo",),
    "how_to/variations": ("domain randomization",),
    "reference/recordings": ("hdf5", "no space left on device"),
    "reference/results": ("actions out of range", "success rate", "confidence interval"),
    "start/first_run": ("first run",),
    "start/install": ("install", "docker"),
    "users/arena": ("experiment yaml",),
    "users/lerobot": ("lerobot dataset",),
}
LONG = ("reference/", "users/arena.html", "concepts/training_promises.html")
"""Pages of tables, which readers search and do not read."""
ELSEWHERE = ("project/", "404.html")

_INPUT = "document.querySelector('.md-search__input')"
_RESULTS = "[...document.querySelectorAll('.md-search-result__item a.md-search-result__link')]"


@pytest.fixture(scope="module")
def search(chromium: Browser) -> Iterator[Page]:
    """A tab whose search has read its index."""
    tab = Page(chromium)
    tab.open(SITE / "index.html")
    tab.run(f"{_INPUT}.focus()")
    tab.type("episode")
    tab.press("End")
    tab.until(f"{_RESULTS}.length > 0", timeout_s=60)
    yield tab
    tab.close()


@pytest.mark.parametrize(("page", "query"), [(page, query) for page, queries in FOUND.items() for query in queries])
def test_the_search_finds_the_right_page_first(search, page, query):
    search.run(f"{_INPUT}.value = ''; {_INPUT}.focus()")
    search.type("zzzz")
    search.press("End")
    search.until(f"{_RESULTS}.length === 0")
    search.run(f"{_INPUT}.value = ''; {_INPUT}.focus()")
    search.type(query)
    search.press("End")
    search.until(f"{_RESULTS}.length > 0")
    assert search.run(f"new URL({_RESULTS}[0].href).pathname").endswith(f"/site/{page}.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_its_window_and_only_references_are_long(chromium, width):
    tab = Page(chromium, width=width)
    too_wide, too_long = [], []
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        tab.open(path)
        size = tab.run("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        too_wide += [name] if size[0] > width else []
        too_long += [name] if width == 1280 and size[1] > 6_000 and not name.startswith(LONG) else []
    tab.close()
    assert (too_wide, too_long) == ([], [])
