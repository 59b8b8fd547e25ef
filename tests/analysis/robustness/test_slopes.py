from isaaclab_arena.analysis.picture import Dot, Words
from isaaclab_arena.analysis.robustness import slope_picture
from tests.analysis.robustness.changed_runs import drops_of, write_changed_run


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
