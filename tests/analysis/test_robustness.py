"""How much of its success a policy keeps under changes."""

import csv

import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.picture import Dot, Words
from isaaclab_arena.analysis.robustness import DROPS, drops, sentences, slope_picture, write_robustness
from isaaclab_arena.results.columns import table_of
from isaaclab_arena.results.statistics import holm, mcnemar_mid_p, paired_difference_interval
from isaaclab_arena.results.stopping import PairCounts
from tests.analysis.changed_runs import drops_of, write_changed_run
from tests.analysis.recorded_runs import write_run
from tests.results.evidence import there

BENIGN = ("benign", 0)


def test_a_drop_is_the_benign_rate_less_the_changed_one_over_the_same_episodes(tmp_path):
    arms = {BENIGN: "sssssfss", ("light", 5): "sfffsssf"}
    found = drops_of(write_changed_run(tmp_path / "run", arms))[("light", 5)]
    counts = PairCounts(both=3, only_first=4, only_second=1, neither=0)
    assert found.counts == counts
    assert found.drop == pytest.approx(3 / 8)
    assert there(found.cost).interval == paired_difference_interval(counts)
    assert there(found.cost).mid_p == mcnemar_mid_p(4, 1)
    assert (found.scored.rate, found.libero_plus, found.left_out) == (0.5, "light", 0)


def test_each_level_is_a_family_of_its_own_over_the_axes(tmp_path):
    arms = {("light", 1): "ssssssss", ("delay", 1): "sssssfff", ("light", 5): "ffffffff", ("delay", 5): "fffffsss"}
    found = drops_of(write_changed_run(tmp_path / "run", {BENIGN: "ssssssss", **arms}))
    for level in (1, 5):
        own = [found["light", level], found["delay", level]]
        assert [each.holm_p for each in own] == holm([each.cost.mid_p for each in own if each.cost is not None])
    assert (found[BENIGN].holm_p, found[BENIGN].cost) == (None, None)
    assert drops(read_run(write_run(tmp_path / "no arms", {"lift": "sf"})).arms.values()) == ()


def test_episodes_that_differ_in_something_else_are_no_pairs(tmp_path):
    arms = {BENIGN: "ssss", ("light", 5): "ffff", ("object_mass", 5): "ffff", ("all", 5): "ffff"}
    light, mass = {"light.intensity": 2.0}, {"cube.mass": 0.2}
    conditions = {"light": light, "object_mass": {**mass, "cube.x": 0.6}, "all": {**mass, **light}}
    turned_on = {"light": [*light], "object_mass": [*mass], "all": [*mass, *light]}
    found = drops_of(write_changed_run(tmp_path / "run", arms, conditions=conditions, turned_on=turned_on))
    assert (found["light", 5].drop, found["light", 5].left_out) == (1.0, 0)
    assert (found["object_mass", 5].cost, found["object_mass", 5].left_out) == (None, 4)
    assert found["all", 5].drop == 1.0
    # What the job varies itself is part of both arms.
    conditions, turned_on = {"benign": mass, "light": {**mass, **light}}, {"benign": [*mass], "light": [*mass, *light]}
    arms = {BENIGN: "ssss", ("light", 5): "ffff"}
    found = drops_of(write_changed_run(tmp_path / "both", arms, conditions=conditions, turned_on=turned_on))
    assert found["light", 5].drop == 1.0


@pytest.mark.parametrize(
    ("axis", "conditions", "turned_on"),
    [
        ("camera_pose", {"cube.position": (0.5, 0.2, 0.0)}, ["wrist_cam.position"]),
        ("object_position", {"wrist_cam.position": (0.0, 0.1, 0.0)}, ["wrist_cam.position"]),
        ("object_color", {"light.color": (1.0, 0.9, 0.9)}, ["light.color"]),
        ("object_mass", {"cube.mass": 0.2, "light.color": (1.0, 0.9, 0.9)}, ["cube.mass", "light.color"]),
        ("object_mass", {"cube.mass": 0.2, "distractor_1.yaw": 0.3}, ["cube.mass"]),
    ],
)
def test_an_arm_in_which_another_axis_changed_something_is_no_pair(tmp_path, axis, conditions, turned_on):
    arms = {BENIGN: "ssss", (axis, 5): "ffff"}
    own = {"benign": {"cube.position": (0.5, 0.1, 0.0)}, axis: {"cube.position": (0.5, 0.1, 0.0), **conditions}}
    found = drops_of(write_changed_run(tmp_path / "run", arms, conditions=own, turned_on={axis: turned_on}))
    assert (found[axis, 5].cost, found[axis, 5].left_out) == (None, 4)


def test_errors_and_missing_episodes_leave_their_pair_out(tmp_path):
    arms = {BENIGN: "sse-", ("light", 5): "fess"}
    found = drops_of(write_changed_run(tmp_path / "run", arms))[("light", 5)]
    assert found.counts == PairCounts(both=0, only_first=1, only_second=0, neither=0)
    assert (len(found.scored), found.left_out) == (3, 3)


def test_arms_that_repeat_starts_are_no_surer_than_the_starts(tmp_path):
    once = drops_of(write_changed_run(tmp_path / "once", {BENIGN: "ss", ("light", 1): "ff"}))
    often = drops_of(write_changed_run(tmp_path / "often", {BENIGN: "s" * 20, ("light", 1): "f" * 20}, starts=2))
    few, many = once["light", 1], often["light", 1]
    assert (len(many.scored), many.scored.num_distinct) == (20, 2)
    assert there(many.scored.wilson()).high == pytest.approx(there(few.scored.wilson()).high)
    assert there(many.cost).mid_p == pytest.approx(there(few.cost).mid_p)
    assert there(many.cost).interval.low == pytest.approx(there(few.cost).interval.low)
    assert list(table_of(DROPS, list(often.values())))[-1] == "distinct_conditions"
    assert "distinct_conditions" not in table_of(DROPS, list(once.values()))
    assert any("20 episodes, 2 different conditions" in line for line in sentences(list(often.values())))


def test_a_table_for_programs_one_for_people_and_pictures_are_written(tmp_path):
    arms = {("benign", 0): "s" * 8, ("light", 5): "f" * 8, ("object_mass", 5): "s" * 8}
    run = write_changed_run(tmp_path / "run", arms)
    written = write_robustness(run, list(drops_of(run).values()))
    assert [path.name for path in written] == [
        f"robustness{rest}" for rest in (".csv", ".md", "_lift.svg", "_lift.png")
    ]
    benign, light, mass = csv.DictReader((run / "robustness.csv").open())
    assert (benign["axis"], benign["drop"], benign["success_rate"]) == ("benign", "", "1.0")
    assert (light["level"], light["drop"], light["only_benign"], light["libero_plus"]) == ("5", "1.0", "8.0", "light")
    assert (mass["drop"], mass["libero_plus"]) == ("0.0", "")
    text = (run / "robustness.md").read_text()
    for words in ("| lift | light | 5 | light | 8 |", "drops along light (100 points)", "pictures change along light"):
        assert words in text
    assert "light 5: 0 %" in (run / "robustness_lift.svg").read_text()


def test_every_axis_begins_at_the_benign_rate_and_falls_with_the_level(tmp_path):
    arms = {("benign", 0): "ssss", ("light", 1): "sssf", ("light", 5): "ffff", ("delay", 1): "ssss"}
    found = list(drops_of(write_changed_run(tmp_path / "run", arms)).values())
    picture = slope_picture(found)
    named = [mark.text for mark in picture.marks if isinstance(mark, Words)]
    assert {"light", "delay"} <= set(named)
    dots = [mark.centre for mark in picture.marks if isinstance(mark, Dot)]
    light, delay = dots[:3], dots[3:]
    assert light[0][1] == delay[0][1] == delay[1][1]
    assert light[0][1] < light[1][1] < light[2][1]
    assert light[0][0] < light[1][0] < light[2][0] < delay[0][0]
    assert "light 5: 0 %" in picture.description
