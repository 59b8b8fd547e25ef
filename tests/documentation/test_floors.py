"""The floors that the document of how it is built shows are those that import-linter checks."""

from tests.documentation.floors import DOCUMENT, floors_of_package, with_floors


def test_the_document_shows_the_floors_of_the_contracts():
    text = DOCUMENT.read_text()
    assert "<!-- floors -->" in text
    assert text == with_floors(text), "run: python -m tests.documentation.floors"


def test_every_room_says_what_it_is_for():
    assert all(room.purpose for room in floors_of_package("isaaclab_arena"))
