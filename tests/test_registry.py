import pytest

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.registry import Registry, optional_library


def colours() -> Registry:
    return Registry("colour", {"red": "collections:OrderedDict", "green": "collections:deque"}, "no.such.group")


def numbers() -> Registry:
    return Registry("number", {"one": "operator:index"}, "no.such.group", {"hex": "binascii:unhexlify"})


@pytest.mark.parametrize(
    ("registry", "name", "told"),
    [
        (colours(), "gren", "no colour called 'gren'; did you mean 'green'"),
        (colours(), "zzzzzz", "known are: green, red"),
        (numbers(), "octal:777", r"known are: hex:\.\.\., one"),
        (ENVIRONMENTS, "CartPole-v1", "'CartPole-v1'; did you mean 'gym:CartPole-v1'"),
        (ENVIRONMENTS, "gym_pusht/PushT-v0", "did you mean 'gym:gym_pusht/PushT-v0'"),
        (ENVIRONMENTS, "cartpole-v1", "did you mean 'gym:cartpole-v1'"),
        (ENVIRONMENTS, "pick-place-v3", "did you mean 'metaworld:pick-place-v3'"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_or_the_list(registry, name, told):
    with pytest.raises(ConfigError, match=told):
        registry.get(name)


def test_a_registered_entry_is_found_and_listed_and_no_other_takes_its_name():
    registry = colours()
    for _ in range(2):
        registry.register("blue", int)
    assert (registry.get("blue"), registry.get("red").__name__) == (int, "OrderedDict")
    assert registry.names() == ["blue", "green", "red"]
    assert "blue" in registry
    with pytest.raises(ValueError, match="'blue'"):
        registry.register("blue", float)


def test_an_installed_package_adds_entries_through_its_entry_points(tmp_path, monkeypatch):
    (tmp_path / "paint_shop.py").write_text("class Violet: ...\n")
    info = tmp_path / "paint_shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paint-shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[test.colours]\nviolet = paint_shop:Violet\nbroken = paint_shop:Nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("colour", {}, "test.colours")
    assert registry.get("violet").__name__ == "Violet"
    with pytest.raises(ConfigError, match="'paint_shop:Nothing'"):
        registry.get("broken")


@pytest.mark.parametrize("library", ["msgpack", "websockets"])
def test_an_entry_that_lacks_the_library_of_an_extra_says_how_to_install_it(tmp_path, monkeypatch, library):
    (tmp_path / "half_a_shop.py").write_text(f"raise ModuleNotFoundError(name='{library}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("colour", {"pale": "half_a_shop:Pale"}, "no.such.group")
    with pytest.raises(ConfigError, match=r"'pale' .*pip install '.*\[remote\]'"):
        registry.get("pale")


def test_a_scheme_makes_entries_of_names_without_number():
    registry = numbers()
    assert registry.get("hex:ff00") == b"\xff\x00"
    assert "hex:0a" in registry
    assert registry.names() == ["one"]
    assert registry.patterns() == ["hex:..."]


def test_a_library_that_is_not_installed_is_refused_with_the_extra_that_installs_it():
    with pytest.raises(ConfigError, match=r"--nowhere: .*pip install '.*\[nowhere\]'"):
        optional_library("nowhere", key="--nowhere")
    assert optional_library("json", key="--json").loads("1") == 1
