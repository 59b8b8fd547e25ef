import numpy as np

from isaaclab_arena.sim.backend import ModelChange, write_changes


def mass(entry: int, value: float) -> ModelChange:
    return ModelChange(field="body_mass", entry=entry, value=(value,))


def test_each_world_gets_its_own_changes_and_no_other():
    colour = ModelChange(field="geom_rgba", entry=4, value=(1.0, 0.0, 0.0, 1.0))
    fields = {"body_mass": np.zeros((4, 3)), "geom_rgba": np.zeros((4, 5, 4))}
    write_changes([[mass(1, 0.1), colour], [], [mass(1, 0.3), mass(2, 0.4)]], fields, np.array([3, 0, 1]))
    assert fields["body_mass"].tolist() == [[0, 0, 0], [0, 0.3, 0.4], [0, 0, 0], [0, 0.1, 0]]
    assert fields["geom_rgba"][3, 4].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert fields["geom_rgba"].sum() == 2


def test_the_later_of_two_changes_of_an_entry_wins():
    fields = {"body_mass": np.zeros((1, 2))}
    write_changes([[mass(1, 0.1), mass(1, 0.2)]], fields, np.arange(1))
    assert fields["body_mass"].tolist() == [[0, 0.2]]
