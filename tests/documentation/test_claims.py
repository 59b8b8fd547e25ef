"""What docs/concepts/claims.md names as holding a claim exists: a test, or a benchmark."""

import re

import pytest

from tests.end_to_end.launching import ROOT

CLAIMS = (ROOT / "docs" / "concepts" / "claims.md").read_text()
_HOLDER = re.compile(r"`((?:tests|benchmarks|docs|models|jobs)/[\w./-]+?)(?:::(\w+))?`")
HELD = [line.strip("| ").split(" | ", 1) for line in CLAIMS.splitlines() if re.match(r"\| (?!claim|---)", line)]


@pytest.mark.parametrize(("claim", "holders"), HELD, ids=[claim for claim, _ in HELD])
def test_what_holds_a_claim_exists(claim, holders):
    found = _HOLDER.findall(holders)
    assert found or "`make check`" in holders, claim
    for path, test in found:
        assert (ROOT / path).exists(), path
        assert not test or re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"
