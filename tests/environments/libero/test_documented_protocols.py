"""A protocol does what docs/how_to/libero.md says of it."""

import re

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import HOLD
from isaaclab_arena.environments.libero import PROTOCOLS, Gripper, Protocol, Seeding
from tests.end_to_end.launching import ROOT

TEXT = (ROOT / "docs" / "how_to" / "libero.md").read_text()
PROTOCOL_TEXT = TEXT.replace("\N{MINUS SIGN}", "-").partition("## Protocols")[2].partition("\n## ")[0]
SEEDS = {
    (Seeding.EPISODE, 0): "one for each episode",
    (Seeding.ONCE, 0): "{seed}, once",
    (Seeding.EVERY_RESET, 1): "{seed} + episode, at each reset",
}
GRIPPERS = {Gripper.RAW: "-1 opens, 1 closes", Gripper.OPEN_IS_ONE: "1 opens, 0 closes", Gripper.SIGN: "below 0 opens"}


def columns() -> dict[str, list[str]]:
    """Rows of the page's table of protocols, from top to bottom."""
    head, _, *lines = [
        line.strip("| ").split(" | ") for line in PROTOCOL_TEXT.strip().splitlines() if line.startswith("|")
    ][:8]
    said = {name.strip("`"): [line[number + 1] for line in lines] for number, name in enumerate(head)}
    return {
        name: ["-1 opens, 1 closes" if each == "the same" else each for each in lines] for name, lines in said.items()
    }


def in_words(protocol: Protocol) -> list[str]:
    """Expected row of a protocol."""
    drawn, shown = protocol.camera_size, protocol.picture_size
    return [
        ", ".join(str(protocol.steps_in(f"libero_{suite}")) for suite in ("spatial", "object", "goal")),
        ", ".join(str(protocol.steps_in(f"libero_{suite}")) for suite in ("10", "90")),
        str(protocol.num_episodes),
        SEEDS[protocol.seeding, protocol.resets_before].format(seed=protocol.seed),
        str(drawn) if shown is None else f"{drawn}, {shown}",
        GRIPPERS[protocol.gripper],
    ]


def test_the_page_says_of_each_protocol_what_it_does():
    assert columns() == {name: in_words(protocol) for name, protocol in PROTOCOLS.items()}


def test_all_hold_still_for_as_long_as_the_page_says_and_with_the_action_it_names():
    found = re.search(r"holds still for (\d+) steps, `\[(.*?)\]`", PROTOCOL_TEXT)
    assert found is not None
    assert {protocol.wait_steps for protocol in PROTOCOLS.values()} == {int(found.group(1))}
    assert tuple(map(float, found.group(2).split(", "))) == HOLD
