"""The robot that `isaaclab-arena new robot six_axis` writes: an arm of six joints with a gripper."""

from tests.end_to_end.launching import ROOT


def _written(file: str) -> str:
    text = (ROOT / "isaaclab_arena" / "assets" / "skeletons" / "robot" / f"{file}.txt").read_text(encoding="utf-8")
    return text.replace("my_name", "six_axis")


MJCF = _written("my_name.xml")
DESCRIPTION = _written("my_name.yaml")
JOB_FILE = _written("jobs.json")
