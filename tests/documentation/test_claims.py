"""Every claim of the README names what holds it: a test, or a benchmark, that exists."""

import re

import pytest

from tests.end_to_end.launching import ROOT

README = (ROOT / "README.md").read_text()
CLAIMS = (ROOT / "docs" / "concepts" / "claims.md").read_text()
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_HOLDER = re.compile(r"`((?:tests|benchmarks|docs|models|jobs)/[\w./-]+?)(?:::(\w+))?`")


def plain(text: str) -> str:
    """Return a text as it reads: links as their words, on one line."""
    return " ".join(_LINK.sub(r"\1", text).split())


def rows(text: str) -> list[tuple[str, str]]:
    """Return the first two cells of every line of the tables in a text, without headings."""
    lines = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    return [(cells[0], cells[1]) for cells in lines if cells[0] not in {"claim", "measure", "---"}]


HELD = rows(CLAIMS)


def bullets() -> list[str]:
    """Return the sentences of the README's bold bullets."""
    found = re.findall(r"^- \*\*[^*]+\*\*(.+?)(?=^- |^#)", README, re.MULTILINE | re.DOTALL)
    return [sentence for bullet in found for sentence in re.split(r"(?<=\.) (?=[A-Z`])", plain(bullet)) if sentence]


@pytest.mark.parametrize(("claim", "holders"), HELD)
def test_a_claim_is_the_readmes_and_what_holds_it_exists(claim, holders):
    assert plain(claim) in plain(README)
    found = _HOLDER.findall(holders)
    assert found or "`make check`" in holders
    for path, test in found:
        assert (ROOT / path).exists(), path
        assert not test or re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"


@pytest.mark.parametrize("sentence", bullets())
def test_every_sentence_of_a_bullet_is_held_by_something(sentence):
    assert any(plain(claim) in sentence for claim, _ in HELD)


@pytest.mark.parametrize("measure", [measure for measure, _ in rows(README.split("## Speed")[1].split("\n## ")[0])])
def test_every_number_of_speed_names_its_benchmark(measure):
    (holders,) = [holders for claim, holders in HELD if claim == measure]
    assert "benchmarks/" in holders


@pytest.mark.parametrize("result", sorted(set(re.findall(r"\((benchmarks/results/\w+\.md)\)", README))))
def test_every_measured_number_of_the_readme_leads_to_its_page_there_too(result):
    assert result in CLAIMS


def test_the_readme_owns_up_to_no_gpu_for_as_long_as_none_has_run_it():
    nothing_yet = "No machine with a GPU has run it yet" in (ROOT / "docs" / "concepts" / "performance.md").read_text()
    assert ("No GPU has run it yet" in plain(README)) == nothing_yet


def test_the_sentences_are_found():
    """So that a README in another shape does not pass for one without claims."""
    assert len(bullets()) >= 8
    assert len(HELD) >= 40
