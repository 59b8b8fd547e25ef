"""A flow goes forward in time, from the noise that was asked for, along the velocity that the network was taught."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.model import Gr00tSmall, Gr00tSmallProcessor
from gr00t.model.modeling import ActionHead, Gr00tSmallConfig, Situation, integrate, interpolate, seeded_noise, towards
from gr00t.policy.gr00t_policy import Gr00tPolicy
from torch import Tensor

HORIZON = 6

Observe = Callable[..., dict[str, Any]]
Built = tuple[Gr00tSmall, Gr00tSmallProcessor]
Velocity = Callable[[Tensor, Tensor], Tensor]


def shaped(tensor: Tensor, time: Tensor) -> Tensor:
    """Return the flow time of each batch entry, everywhere in the entry."""
    return time.view(-1, 1, 1).expand_as(tensor)


@pytest.mark.parametrize("num_steps", [1, 3, 4, 10])
def test_time_begins_at_the_noise_and_goes_forward_in_equal_steps(num_steps: int) -> None:
    times: list[list[float]] = []

    def velocity(points: Tensor, time: Tensor) -> Tensor:
        times.append(time.tolist())
        return torch.zeros_like(points)

    noise = torch.randn(2, 3, 4)
    assert torch.equal(integrate(velocity, noise, num_steps=num_steps), noise)
    assert times == [[pytest.approx(step / num_steps)] * 2 for step in range(num_steps)]


@pytest.mark.parametrize(
    ("velocity", "reached"),
    [
        # Steps of a quarter at the times 0, 1/4, 1/2 and 3/4.
        pytest.param(shaped, 2.0 + (0.0 + 0.25 + 0.5 + 0.75) / 4, id="grows with time"),
        pytest.param(lambda points, _: points, 2.0 * 1.25**4, id="grows with the point"),
        pytest.param(lambda points, time: shaped(points, time) * points, 2.0 * 1.0625 * 1.125 * 1.1875, id="with both"),
    ],
)
def test_four_euler_steps_lead_where_four_euler_steps_by_hand_do(velocity: Velocity, reached: float) -> None:
    end = integrate(velocity, torch.full((2, 3, 4), 2.0), num_steps=4)
    torch.testing.assert_close(end, torch.full((2, 3, 4), reached))


@pytest.mark.parametrize(
    ("time", "guidance"),
    # (t ** 2 + (1 - t) ** 2) / (t (1 - t)), and 5 at most.
    [(0.0, 5.0), (0.1, 5.0), (0.25, 10 / 3), (0.5, 2.0), (0.75, 10 / 3)],
)
def test_guidance_pulls_the_predicted_action_towards_the_planned_one_as_the_paper_says(
    time: float, guidance: float
) -> None:
    slope, points, target = 3.0, torch.full((2, 3, 1), 0.5), torch.full((2, 3, 1), 2.0)
    weights = torch.tensor([1.0, 0.25, 0.0]).view(1, 3, 1).expand(2, 3, 1)
    guided = towards(lambda at, _: slope * at, target, weights)(points, torch.full((2,), time))
    # The velocity is linear, so the Jacobian of the predicted action is a number.
    jacobian = 1.0 + (1.0 - time) * slope
    expected = slope * points + guidance * jacobian * weights * (target - jacobian * points)
    torch.testing.assert_close(guided, expected)


def test_the_way_from_noise_to_action_is_straight_and_as_long_as_its_time() -> None:
    noise, action = torch.full((3, 1, 1), 4.0), torch.full((3, 1, 1), -4.0)
    assert interpolate(noise, action, torch.tensor([0.0, 0.25, 1.0])).flatten().tolist() == [4.0, 2.0, -4.0]


class SayingHead(ActionHead):
    """An action head that says the velocity it is told to say, and keeps the points and times it is asked for."""

    def __init__(self, config: Gr00tSmallConfig, says: Velocity) -> None:
        super().__init__(config)
        self.says = says
        self.asked: list[tuple[Tensor, Tensor]] = []

    def velocity(self, situation: Situation, action: Tensor, time: Tensor) -> Tensor:
        del situation
        self.asked.append((action.clone(), time.clone()))
        return self.says(action, time)


def saying(model: Gr00tSmall, velocity: Velocity) -> tuple[Gr00tSmall, list[tuple[Tensor, Tensor]]]:
    """Return a model with such a head, and what the head will have been asked."""
    head = SayingHead(model.config, velocity)
    told = copy.deepcopy(model)
    told.action_head = head
    return told, head.asked


def test_the_model_acts_by_following_its_velocity_from_the_noise_in_as_many_steps_as_it_was_built_for(
    built: Built, observe: Observe
) -> None:
    model, processor = built
    inputs = processor(observe(2), EmbodimentTag.resolve("new_embodiment"), device=torch.device("cpu"))
    noise = torch.randn(2, HORIZON, model.config.max_action_dim, generator=torch.Generator().manual_seed(0))
    for asked_for, steps in ((None, model.config.num_inference_timesteps), (5, 5)):
        told, asked = saying(model, lambda points, time: points + shaped(points, time))
        action = told.get_action(inputs, noise=noise, num_inference_timesteps=asked_for)
        assert [float(time[0]) for _, time in asked] == pytest.approx([step / steps for step in range(steps)])
        assert torch.equal(asked[0][0], noise)
        expected = noise
        for step in range(steps):
            expected = expected + (expected + step / steps) / steps
        torch.testing.assert_close(action, expected)


@pytest.mark.parametrize("time", [0.0, 0.25, 1.0])
def test_the_model_is_taught_the_velocity_from_noise_to_action_at_the_point_of_that_time(
    built: Built, observe: Observe, time: float
) -> None:
    model, processor = built
    inputs = processor(observe(1), EmbodimentTag.resolve("new_embodiment"), device=torch.device("cpu"))
    shape = (1, HORIZON, model.config.max_action_dim)
    generator = torch.Generator().manual_seed(1)
    noise, action = (torch.randn(shape, generator=generator) for _ in range(2))
    inputs |= {"action": action, "action_mask": torch.ones(shape, dtype=torch.bool)}
    for velocity, loss in (
        (action - noise, 0.0),
        (torch.zeros(shape), float((action - noise).square().mean())),
        (noise - action, 4 * float((action - noise).square().mean())),
    ):
        said = velocity
        told, asked = saying(model, lambda points, _, said=said: said)
        output = told(inputs, noise=noise, time=torch.tensor([time]))
        assert float(output.loss) == pytest.approx(loss)
        torch.testing.assert_close(asked[0][0], (1 - time) * noise + time * action)
        assert asked[0][1].tolist() == [time]


SEEDS = [0, 7, 2**32 + 7, 2**63 - 1]


def drawn(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_seed_is_that_of_torchs_generator() -> None:
    noise = seeded_noise(SEEDS, (4, 5))
    for entry, seed in zip(noise, SEEDS, strict=True):
        torch.testing.assert_close(entry, drawn(seed, (4, 5)))
    assert len({tuple(entry.flatten().tolist()) for entry in noise[[0, 1, 3]]}) == 3


def test_the_flow_of_each_batch_entry_starts_from_the_noise_of_its_own_seed(
    policy: Gr00tPolicy, observe: Observe
) -> None:
    policy = copy.copy(policy)
    policy.model, asked = saying(policy.model, lambda points, _: torch.zeros_like(points))
    answer, _ = policy.get_action(observe(4), {"noise_seeds": SEEDS})
    shape = (policy.model.config.action_horizon, policy.model.config.max_action_dim)
    for entry, seed in enumerate(SEEDS):
        torch.testing.assert_close(asked[0][0][entry], drawn(seed, shape))
    # A flow that stays where it is answers the noise itself, decoded.
    expected = policy.processor.decode_action(asked[0][0], policy.embodiment_tag)
    assert all(np.array_equal(answer[key], expected[key]) for key in answer)


def test_without_seeds_the_noise_is_torchs_own(policy: Gr00tPolicy, observe: Observe) -> None:
    answers = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            answers.append(policy.get_action(observe(1))[0]["arm"])
    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])
