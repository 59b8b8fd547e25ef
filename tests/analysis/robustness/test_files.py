import csv

from isaaclab_arena.analysis.robustness import write_robustness
from tests.analysis.robustness.changed_runs import drops_of, write_changed_run


def test_a_table_for_programs_one_for_people_and_pictures_are_written(tmp_path):
    arms = {("benign", 0): "s" * 8, ("light", 5): "f" * 8, ("object_mass", 5): "s" * 8}
    run = write_changed_run(tmp_path / "run", arms)
    written = write_robustness(run, list(drops_of(run).values()))
    assert [path.name for path in written] == [
        "robustness.csv",
        "robustness.md",
        "robustness_lift.svg",
        "robustness_lift.png",
    ]
    benign, light, mass = csv.DictReader((run / "robustness.csv").open())
    assert (benign["axis"], benign["drop"], benign["success_rate"]) == ("benign", "", "1.0")
    assert (light["level"], light["drop"], light["only_benign"], light["libero_plus"]) == ("5", "1.0", "8.0", "light")
    assert (mass["drop"], mass["libero_plus"]) == ("0.0", "")
    text = (run / "robustness.md").read_text()
    assert "| lift | light | 5 | light | 8 |" in text
    assert "lift: at level 5 success drops along light (100 points) (5 % after Holm's correction for 2 tests)" in text
    assert "lift: only pictures change along light" in text
    assert "light 5: 0 %" in (run / "robustness_lift.svg").read_text()
