import pytest

from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.errors import ConfigError

ON_THE_TABLE = ((0.4, -0.2), (0.6, 0.2))


@pytest.fixture
def thing_of(tmp_path):
    """Declares a thing by what its file holds."""

    def declare(body: str, **declared) -> SceneObject:
        file = tmp_path / "cup.xml"
        file.write_text(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
        return SceneObject(prefix="cup", asset=str(file), **declared)

    return declare


def refusal(thing_of, body: str, **declared) -> str:
    with pytest.raises(ConfigError) as caught:
        thing_of(body, **declared)
    [problem] = caught.value.problems
    assert problem.file is not None
    assert problem.file.endswith("cup.xml")
    return problem.message


def test_a_thing_whose_file_calls_its_body_otherwise_is_refused_where_it_is_declared(thing_of):
    message = refusal(thing_of, '<body name="cup"><freejoint name="free"/></body>', loose=True)
    assert message == "thing 'cup' has no body called 'body', which holds all of a thing; known are: cup"


@pytest.mark.parametrize(
    "body",
    [
        '<body name="body"><freejoint name="cup_joint"/></body>',
        '<body name="body"><joint name="free" type="slide"/></body>',
        '<body name="body"><geom size="1"/></body>',
        '<body name="outer"><freejoint name="free"/><body name="body"/></body>',
    ],
    ids=["called_otherwise", "no_free_joint", "no_joint", "on_another_body"],
)
def test_a_loose_thing_hangs_on_a_free_joint_called_free(thing_of, body):
    assert "has no free joint called 'free' on 'body', as a loose thing has" in refusal(thing_of, body, loose=True)


def test_a_thing_that_is_placed_and_not_loose_is_moved_by_hand(thing_of):
    still = '<body name="body"><geom size="1"/></body>'
    assert """has no mocap="true" on 'body'""" in refusal(thing_of, still, area=ON_THE_TABLE)
    assert thing_of(still).draw is not None, "a thing without an area stays where the task puts it"
    assert thing_of('<body name="body" mocap="true"/>', area=ON_THE_TABLE).area == ON_THE_TABLE


def test_a_file_that_is_missing_or_no_mjcf_is_named(thing_of, tmp_path):
    with pytest.raises(ConfigError, match=r"none\.xml: there is no such file"):
        SceneObject(prefix="cup", asset=str(tmp_path / "none.xml"))
    assert "cannot be read: " in refusal(thing_of, "<bdy/>")


def test_a_file_that_was_mended_is_read_again(thing_of):
    assert "no body called" in refusal(thing_of, '<body name="cup"/>')
    assert thing_of('<body name="body"/>').body == "cup/body"
