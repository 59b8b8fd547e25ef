import pytest
from gr00t import EmbodimentError
from gr00t.data.embodiment_tags import EmbodimentTag


@pytest.mark.parametrize("written", ["GR1", "gr1", " Gr1 ", EmbodimentTag.GR1])
def test_a_tag_is_found_by_name_or_value_in_any_case(written: str | EmbodimentTag) -> None:
    assert EmbodimentTag.resolve(written) is EmbodimentTag.GR1


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("unitree_g1_full_body_with_waist_height_nav_cmd", "UNITREE_G1"),
        ("libero_sim", "LIBERO_PANDA"),
        ("sim_behavior_r1_pro", "BEHAVIOR_R1_PRO"),
        ("SIMPLER_ENV_GOOGLE", "OXE_GOOGLE"),
        ("simpler_env_widowx", "OXE_WIDOWX"),
    ],
)
def test_a_robot_is_known_by_what_gr00t_n1_7_calls_it(written: str, name: str) -> None:
    assert EmbodimentTag.resolve(written) is EmbodimentTag[name]


def test_an_unknown_tag_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(EmbodimentError, match=r"'new_embodyment'; did you mean 'new_embodiment'\? .*OXE_DROID"):
        EmbodimentTag.resolve("new_embodyment")
