"""The browser, and the rules that judge whether everyone can use a page."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Browser, Page, browser

HERE = Path(__file__).parent
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"
_INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    """One browser for all tests of a worker."""
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(chromium) -> Iterator[Page]:
    """A new tab."""
    tab = Page(chromium)
    yield tab
    tab.close()


@pytest.fixture(scope="session")
def violations() -> Callable[[Page], list[str]]:
    """Say which serious rules of axe-core a page breaks, and where."""
    script = _axe()

    def check(page: Page) -> list[str]:
        page.run(script)
        found: list[dict[str, Any]] = page.run("axe.run().then(result => result.violations)")
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]

    return check


def _axe() -> str:
    """Return axe-core; it is fetched once, in the version and with the hash of package-lock.json."""
    if not AXE.is_file():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is not installed, and there is no npm to install it")
        installed = subprocess.run(_INSTALL, cwd=HERE, capture_output=True, text=True, check=False, timeout=120)
        if installed.returncode != 0:
            pytest.skip(f"axe-core cannot be installed: {installed.stderr.strip().splitlines()[-1:]}")
    return AXE.read_text(encoding="utf-8")
