"""Answers that depend on the place in a batch, or on what stands beside it, are found out by a few calls."""

import pytest
import torch

from isaaclab_arena.evaluation.batching import MAX_CALLS, answers_follow_from_examples


class Answering:
    """Answers each example with what ``rule`` makes of all of them in order, and counts how often it was asked."""

    def __init__(self, rule):
        self.rule = rule
        self.num_calls = 0
        self.arrangements = []

    def __call__(self, examples, num_steps):
        self.arrangements.append(examples)
        self.num_calls += num_steps
        values = torch.tensor([1.0 + example / 7 for example in examples])
        return [torch.stack((values, self.rule(values + step)), dim=1) for step in range(num_steps)]


def place(values):
    return torch.arange(float(len(values)))


@pytest.mark.parametrize("batch", [2, 3, 4, 5, 8, 64, 100])
def test_examples_that_stand_alone_pass_and_cost_five_calls(batch):
    asked = Answering(lambda values: values * 3)
    assert answers_follow_from_examples(asked, batch)
    assert asked.num_calls == MAX_CALLS


DEPENDENT = {
    "place": lambda values: values + place(values) * 1e-6,
    "last place": lambda values: values + (place(values) == len(values) - 1) * 1e-6,
    "last four": lambda values: values + (place(values) >= len(values) - 4) * 1e-6 * place(values),
    "odd places": lambda values: values + (place(values) % 2) * 1e-6,
    "place before": lambda values: values + values.roll(1) * 1e-6,
    "mean of all": lambda values: values - values.mean(),
    "largest of all": lambda values: values / values.max(),
    "sign of zero": lambda values: torch.where(place(values) == 0, -0.0, 0.0),
}


@pytest.mark.parametrize("rule", DEPENDENT)
@pytest.mark.parametrize("batch", [4, 8, 52])
def test_examples_that_depend_on_places_or_neighbours_are_found_out(rule, batch):
    assert not answers_follow_from_examples(Answering(DEPENDENT[rule]), batch)


def test_what_is_remembered_from_the_step_before_counts_too():
    def ask(examples, num_steps):
        values = torch.tensor(examples, dtype=torch.float64)[:, None]
        return [values, values + torch.arange(len(examples))[:, None] * 1e-9][:num_steps]

    assert not answers_follow_from_examples(ask, 4)


def test_answers_that_are_no_numbers_are_equal_to_themselves():
    assert answers_follow_from_examples(Answering(lambda values: values * torch.nan), 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_answers_of_any_type_are_compared(dtype):
    assert answers_follow_from_examples(Answering(lambda values: (values * 50).to(dtype)), 4)
    assert not answers_follow_from_examples(Answering(lambda values: place(values).to(dtype)), 4)


def test_a_single_example_is_not_asked_for():
    assert answers_follow_from_examples(lambda examples, num_steps: pytest.fail("asked"), 1)


@pytest.mark.parametrize("batch", range(2, 20))
def test_every_arrangement_is_a_whole_batch_of_different_examples(batch):
    asked = Answering(lambda values: values * 3)
    answers_follow_from_examples(asked, batch)
    assert asked.num_calls <= MAX_CALLS
    for examples in asked.arrangements:
        assert len(set(examples)) == batch
        assert set(examples) <= set(range(batch + (batch + 1) // 2))
