"""docs/how_to/verification.md shows what the commands say."""

import re

from isaaclab_arena.cli.commands.files.replay import described as replayed_line
from isaaclab_arena.cli.commands.files.replay import summary as replay_summary
from isaaclab_arena.cli.commands.files.verify import described as verified_line
from isaaclab_arena.evaluation.verify.episode_comparison import Difference
from isaaclab_arena.evaluation.verify.replaying import ReplayedEpisode
from isaaclab_arena.evaluation.verify.verification import VerifiedEpisode
from tests.documentation.reading import as_arguments, blocks
from tests.end_to_end.launching import ROOT, run

DOCUMENT = (ROOT / "docs" / "how_to" / "verification.md").read_text()
POSE = Difference(field="states/rigid_object/cube/root_pose", recorded="", found="", step=17, max_abs=3.2e-9)
ACTIONS = Difference(field="actions", recorded="", found="", step=0, max_abs=2.7e-7)


def test_the_commands_run_one_after_the_other(tmp_path):
    (commands,) = blocks(DOCUMENT, "bash")
    finished = [run(as_arguments(line), timeout_s=200, directory=tmp_path) for line in commands.splitlines()]
    assert [each.returncode for each in finished] == [0, 0, 0], [each.stderr for each in finished]
    assert "3 of 3 episodes bitwise" in finished[1].stdout
    assert "2 of 2 episodes bitwise" in finished[2].stdout


def test_what_is_shown_is_what_is_said():
    compared = ("initial_state", "obs", "actions", "states", "rewards")
    replayed = [
        ReplayedEpisode(episode_index=0, num_steps=40, compared=compared, from_exact_state=True),
        ReplayedEpisode(episode_index=1, num_steps=41, difference=POSE, compared=compared, from_exact_state=True),
    ]
    verified = [
        VerifiedEpisode(job="lift", episode_index=3, num_steps=36, compares_arrays=True),
        VerifiedEpisode(
            job="reach",
            episode_index=0,
            num_steps=120,
            compares_arrays=True,
            difference=ACTIONS,
            explanation="expected: this policy's answers may change with num_envs; run with --deterministic",
        ),
    ]
    lines = [*map(replayed_line, replayed), replay_summary(replayed), *map(verified_line, verified)]
    shown = re.findall(r"^ {4}(.*)$", DOCUMENT, re.MULTILINE)
    assert set(lines) <= set(shown)
