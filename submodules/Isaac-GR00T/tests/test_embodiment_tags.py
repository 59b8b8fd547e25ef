import pytest
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.errors import EmbodimentError


@pytest.mark.parametrize("written", ["GR1", "gr1", " Gr1 ", EmbodimentTag.GR1])
def test_a_tag_is_found_by_name_or_value_in_any_case(written: str | EmbodimentTag) -> None:
    assert EmbodimentTag.resolve(written) is EmbodimentTag.GR1


def test_an_unknown_tag_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(EmbodimentError, match=r"'new_embodyment'; did you mean 'new_embodiment'\? .*OXE_DROID"):
        EmbodimentTag.resolve("new_embodyment")
