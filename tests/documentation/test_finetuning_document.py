"""docs/how_to/finetuning.md shows commands that work one after the other; here with fewer episodes and steps."""

import pytest

from tests.documentation.reading import as_arguments, blocks
from tests.documentation.test_lerobot_document import declare_policies
from tests.end_to_end.launching import ROOT, jobs_table, patience_s, run

DOCUMENT = (ROOT / "docs" / "how_to" / "finetuning.md").read_text()
LESS = {
    "--num_episodes 100": "--num_episodes 4",
    "--num_episodes 20": "--num_episodes 1",
    "checkpoint-10000": "checkpoint-2",
}
FEW_STEPS = " --max_steps 2 --batch_size 2 --noise_draws 1 --validation_share 0.25"


def test_demonstrations_are_collected_learned_and_evaluated(tmp_path):
    declare_policies(tmp_path)
    (tmp_path / "isaaclab_arena_gr00t").symlink_to(ROOT / "isaaclab_arena_gr00t")
    # The second block trains on two ranks, which has tests of its own and takes three times as long.
    lines = blocks(DOCUMENT, "bash")[0].splitlines()
    assert len(lines) == 3
    for line in lines:
        for much, little in LESS.items():
            line = line.replace(much, little)  # noqa: PLW2901  the same line, made cheap
        line += FEW_STEPS if "finetune" in line else ""  # noqa: PLW2901
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'submodules' / 'Isaac-GR00T'}:{tmp_path}"}
        finished = run(as_arguments(line), timeout_s=patience_s(120), directory=tmp_path, extra=path)
        assert finished.returncode == 0, finished.stderr
    (evaluated,) = (tmp_path / "outputs").glob("20*")
    assert jobs_table(evaluated)["episodes"].tolist() == [1]


@pytest.mark.slow
def test_the_models_that_come_along_solve_their_tasks(tmp_path):
    (line,) = [line for line in blocks(DOCUMENT, "bash")[-1].splitlines() if "arena run" in line]
    finished = run(as_arguments(f"{line} --output_dir {tmp_path / 'out'} --device cpu"), timeout_s=patience_s(300))
    assert finished.returncode == 0, finished.stderr
    rates = jobs_table(tmp_path / "out").set_index("name")["success_rate"]
    assert set(rates.index) == {"lift", "place", "drawer", "colour"}
    assert all(rates >= 0.6)
