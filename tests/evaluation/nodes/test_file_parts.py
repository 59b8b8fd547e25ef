import pytest

from isaaclab_arena.evaluation.nodes.file_parts import FilePart


def test_a_part_comes_out_of_its_letter_as_it_went_in():
    part = FilePart(job="lift", file="lines.jsonl", offset=7, content='{"said": "grün 🤖"}\n'.encode()[:-5])
    assert FilePart.of_message(part.as_message()) == part


@pytest.mark.parametrize(
    "message", ["", "{", "[]", '["lift", "lines", -1, ""]', '["lift", "lines", 0, "\\u20ac"]', "[1, 2, 3, 4]"]
)
def test_anything_else_is_no_part(message):
    with pytest.raises(ValueError):  # noqa: PT011
        FilePart.of_message(message)
