"""The floors that the documents show are those that import-linter checks."""

import pytest

from tests.documentation.floors import DOCUMENTS, ROOT, floors_of_package, with_floors


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_shows_the_floors_of_the_contracts(document):
    text = (ROOT / document).read_text()
    assert "<!-- floors -->" in text
    assert text == with_floors(text, DOCUMENTS[document]), "run: python -m tests.documentation.floors"


def test_every_room_says_what_it_is_for():
    assert all(room.purpose for room in floors_of_package("isaaclab_arena"))
