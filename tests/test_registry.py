import pytest

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.registry import Registry, optional_library


def colours() -> Registry:
    return Registry("colour", {"red": "collections:OrderedDict", "green": "collections:deque"}, "no.such.group")


def test_a_builtin_entry_is_imported_when_it_is_asked_for():
    assert colours().get("red").__name__ == "OrderedDict"


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match=r"no colour called 'gren'; did you mean 'green'\?"):
        colours().get("gren")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CartPole-v1", "gym:CartPole-v1"),
        ("gym_pusht/PushT-v0", "gym:gym_pusht/PushT-v0"),
        ("cartpole-v1", "gym:cartpole-v1"),
        ("pick-place-v3", "metaworld:pick-place-v3"),
    ],
)
def test_the_id_of_an_environment_of_another_package_gets_its_prefix(name, meant):
    with pytest.raises(ConfigError, match=f"no environment called '{name}'; did you mean '{meant}'"):
        ENVIRONMENTS.get(name)


def test_a_name_without_a_neighbour_gets_the_list():
    with pytest.raises(ConfigError, match="known are: green, red"):
        colours().get("zzzzzz")


def test_a_registered_entry_is_found_and_listed():
    registry = colours()
    registry.register("blue", int)
    assert registry.get("blue") is int
    assert registry.names() == ["blue", "green", "red"]
    assert "blue" in registry


def test_registering_the_same_entry_twice_is_harmless_and_another_one_is_refused():
    registry = colours()
    registry.register("blue", int)
    registry.register("blue", int)
    with pytest.raises(ValueError, match="'blue' is registered already"):
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
    with pytest.raises(ConfigError, match="comes from 'paint_shop:Nothing', which cannot be imported"):
        registry.get("broken")


@pytest.mark.parametrize("library", ["msgpack", "websockets"])
def test_an_entry_that_lacks_the_library_of_an_extra_says_how_to_install_it(tmp_path, monkeypatch, library):
    source = f"raise ModuleNotFoundError(\"No module named '{library}'\", name='{library}')\n"
    (tmp_path / "half_a_shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("colour", {"pale": "half_a_shop:Pale"}, "no.such.group")
    message = rf"'pale' cannot be loaded: .*'{library}'; install it with: pip install '.*\[remote\]'"
    with pytest.raises(ConfigError, match=message):
        registry.get("pale")


def test_a_scheme_makes_entries_of_names_without_number():
    registry = Registry("number", {"one": "operator:index"}, "no.such.group", {"hex": "binascii:unhexlify"})
    assert registry.get("hex:ff00") == b"\xff\x00"
    assert "hex:0a" in registry
    assert registry.names() == ["one"]
    assert registry.patterns() == ["hex:..."]


def test_an_unknown_name_is_told_of_the_schemes():
    registry = Registry("number", {"one": "operator:index"}, "no.such.group", {"hex": "binascii:unhexlify"})
    with pytest.raises(ConfigError, match=r"known are: hex:\.\.\., one"):
        registry.get("octal:777")


def test_a_library_that_is_not_installed_is_refused_with_the_extra_that_installs_it():
    message = r"--nowhere: needs the package nowhere; install it with: pip install '.*\[nowhere\]'"
    with pytest.raises(ConfigError, match=message):
        optional_library("nowhere", key="--nowhere")
    assert optional_library("json", key="--json").loads("1") == 1
