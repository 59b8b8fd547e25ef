"""Every link between documents leads to a file that exists, and every anchor to a heading."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.end_to_end.launching import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("**/*.md"))]
PAGES += [*sorted((ROOT / "benchmarks" / "results").glob("*.md")), *sorted((ROOT / "models").glob("**/*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
_FENCE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page."""
    return {slug(heading) for heading in _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path):
    for target, anchor in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(page), f"{target or path.name} has no heading for #{anchor}"


def test_headings_of_a_page_have_anchors_of_their_own():
    for path in DOCS.glob("**/*.md"):
        headings = _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
        assert len({slug(heading) for heading in headings}) == len(headings), path
