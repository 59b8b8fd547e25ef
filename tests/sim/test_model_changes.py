from isaaclab_arena.sim.backend import ModelChange, changed_entries


def mass(entry: int, value: float) -> ModelChange:
    return ModelChange(field="body_mass", entry=entry, value=(value,))


def test_changes_of_the_same_entry_come_together_with_the_worlds_that_want_them():
    colour = ModelChange(field="geom_rgba", entry=4, value=(1.0, 0.0, 0.0, 1.0))
    first, painted, second = changed_entries([[mass(1, 0.1), colour], [], [mass(1, 0.3), mass(2, 0.4)]])
    assert (first.field, first.entry, first.worlds.tolist(), first.values.tolist()) == (
        *("body_mass", 1, [0, 2]),
        [[0.1], [0.3]],
    )
    assert (painted.field, painted.worlds.tolist(), painted.values.tolist()) == ("geom_rgba", [0], [[1.0, 0, 0, 1.0]])
    assert (second.entry, second.worlds.tolist()) == (2, [2])


def test_the_later_of_two_changes_of_an_entry_stands_last():
    (changed,) = changed_entries([[mass(1, 0.1), mass(1, 0.2)]])
    assert changed.worlds.tolist() == [0, 0]
    assert changed.values.tolist() == [[0.1], [0.2]]
