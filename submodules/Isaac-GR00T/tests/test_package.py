from pathlib import Path

import gr00t


def test_the_package_knows_nothing_of_the_arena() -> None:
    sources = sorted(Path(gr00t.__file__).parent.rglob("*.py"))
    assert len(sources) > 15
    assert [file.name for file in sources if "isaaclab_arena" in file.read_text()] == []
