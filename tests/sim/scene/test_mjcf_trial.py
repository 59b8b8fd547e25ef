"""A short MJCF file can ask for any time and memory: it is compiled elsewhere first, within limits."""

from pathlib import Path

import pytest

from isaaclab_arena.sim.mjcf_trial import MAX_SECONDS, wrong_with_mjcf


def nested(count: int, levels: int) -> str:
    inner = '<geom size=".1"/>'
    for _ in range(levels):
        inner = f'<replicate count="{count}" offset="1 0 0">{inner}</replicate>'
    return f"<worldbody>{inner}</worldbody>"


def textured(pixels: int) -> str:
    texture = f'<texture name="t" type="2d" builtin="flat" width="{pixels}" height="{pixels}"/>'
    return f'<asset>{texture}</asset><worldbody><geom size="1"/></worldbody>'


def verdict(directory: Path, content: str, max_seconds: int = MAX_SECONDS) -> str | None:
    (directory / "robot.xml").write_text(f"<mujoco>{content}</mujoco>")
    return wrong_with_mjcf(directory / "robot.xml", max_seconds=max_seconds)


def test_what_compiles_within_the_limits_is_let_in(tmp_path):
    assert verdict(tmp_path, nested(100, 2)) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested(2, 15), "compiles to 32768 geoms (at most 20000)"),
        (f"<worldbody>{'<body/>' * 2001}</worldbody>", "compiles to 2002 bodies (at most 2000)"),
        (f"<worldbody>{'<body>' * 200_000}{'</body>' * 200_000}</worldbody>", "nest"),
        (textured(14_000), "bytes (at most 536870912)"),
        (textured(60_000), "Could not allocate memory"),
        ("<worldbdy/>", "is refused by MuJoCo: XML Error"),
    ],
)
def test_what_asks_for_too_much_is_refused_with_the_limit(tmp_path, content, message):
    assert message in str(verdict(tmp_path, content))


def test_a_file_that_multiplies_for_ever_is_refused_in_time(tmp_path):
    said = str(verdict(tmp_path, nested(2, 40), max_seconds=5))
    # On a machine that is busy with other work the wall clock runs out first.
    within = "cannot be compiled within 5 s of processor time and 4 GiB of memory"
    assert within in said or "takes MuJoCo more than 10 s to compile" in said
