"""Answers that depend on where a row stands, or on what stands beside it, are found out by a few calls."""

import pytest
import torch

from isaaclab_arena.evaluation.batching.slot_probe import (
    MAX_CALLS,
    answers_follow_from_rows,
    arrangements,
    num_distinct_rows,
)


class Answering:
    """Answers each row with what ``rule`` makes of the rows in their order, and counts how often it was asked."""

    def __init__(self, rule):
        self.rule = rule
        self.num_calls = 0

    def __call__(self, rows, num_steps):
        self.num_calls += num_steps
        values = torch.tensor([1.0 + row / 7 for row in rows])
        return [torch.stack((values, self.rule(values + step)), dim=1) for step in range(num_steps)]


def place(values):
    return torch.arange(float(len(values)))


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 8, 64, 100])
def test_rows_that_stand_alone_pass_and_cost_five_calls(num_rows):
    asked = Answering(lambda values: values * 3)
    assert answers_follow_from_rows(asked, num_rows)
    assert asked.num_calls == MAX_CALLS


DEPENDENT = {
    "place": lambda values: values + place(values) * 1e-6,
    "last row": lambda values: values + (place(values) == len(values) - 1) * 1e-6,
    "last four": lambda values: values + (place(values) >= len(values) - 4) * 1e-6 * place(values),
    "odd places": lambda values: values + (place(values) % 2) * 1e-6,
    "row before": lambda values: values + values.roll(1) * 1e-6,
    "mean of all": lambda values: values - values.mean(),
    "largest of all": lambda values: values / values.max(),
    "sign of zero": lambda values: torch.where(place(values) == 0, -0.0, 0.0),
}


@pytest.mark.parametrize("rule", DEPENDENT)
@pytest.mark.parametrize("num_rows", [4, 8, 52])
def test_rows_that_depend_on_places_or_neighbours_are_found_out(rule, num_rows):
    assert not answers_follow_from_rows(Answering(DEPENDENT[rule]), num_rows)


def test_what_is_remembered_from_the_step_before_counts_too():
    def ask(rows, num_steps):
        values = torch.tensor(rows, dtype=torch.float64)[:, None]
        return [values, values + torch.arange(len(rows))[:, None] * 1e-9][:num_steps]

    assert not answers_follow_from_rows(ask, 4)


def test_answers_that_are_no_numbers_are_equal_to_themselves():
    assert answers_follow_from_rows(Answering(lambda values: values * torch.nan), 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_answers_of_any_type_are_compared(dtype):
    assert answers_follow_from_rows(Answering(lambda values: (values * 50).to(dtype)), 4)
    assert not answers_follow_from_rows(Answering(lambda values: place(values).to(dtype)), 4)


def test_a_single_row_is_not_asked_for():
    assert answers_follow_from_rows(lambda rows, num_steps: pytest.fail("asked"), 1)


@pytest.mark.parametrize("num_rows", range(2, 20))
def test_every_arrangement_is_a_whole_batch_of_different_rows(num_rows):
    tried = arrangements(num_rows)
    assert sum(each.num_steps for each in tried) <= MAX_CALLS
    for each in tried:
        assert len(set(each.rows)) == num_rows
        assert set(each.rows) <= set(range(num_distinct_rows(num_rows)))
