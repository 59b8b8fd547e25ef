"""Environments that can leave pictures out do so, and what they show is what they show otherwise."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, drawing_of
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT
from tests.environments.gym.gym_pictures import PassingOn, Remembering, SeenEnvironment, SparingEnvironment
from tests.environments.gym.worker.robosuite_fakes import FrameStack, GymWrapper, OwnName, PointTask

WANTED = (True, False, False, True, True, False, True)


def played(environment: gymnasium.Env, wanted: tuple[bool, ...] = WANTED) -> list[dict[str, np.ndarray]]:
    """Pictures of two episodes of an environment that learns before each step which pictures are needed."""
    slot, shown = EnvSlot(environment, (), drawing_of(environment)), []
    assert slot.description()["draws_on_demand"] == (drawing_of(environment) is not None)
    for seed in (1, 2):
        shown.append(slot.reset(seed, pictures=wanted[0]).observation)
        for number, is_wanted in enumerate(wanted[1:]):
            action = np.full(environment.action_space.shape or (), 0.1 * number, np.float32)
            shown.append(slot.step(action, pictures=is_wanted).observation)
    return shown


def agree(found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]], camera: str) -> None:
    """Hold that pictures are where they are wanted, and that all that is there is the same."""
    for some, every, wanted in zip(found, expected, WANTED * 2, strict=True):
        assert some.keys() == (every.keys() if wanted else every.keys() - {camera})
        assert all(np.array_equal(some[name], every[name]) for name in some)


def test_an_environment_with_the_hook_draws_what_is_wanted():
    sparing = SparingEnvironment()
    agree(played(sparing), played(SparingEnvironment(), (True,) * len(WANTED)), "front")
    assert sparing.drawn == sum(WANTED)


def test_an_environment_without_the_hook_draws_everything_and_shows_what_is_wanted():
    seen = SeenEnvironment()
    agree(played(seen), played(SeenEnvironment(), (True,) * len(WANTED)), "front")
    assert seen.drawn == len(WANTED)


def test_gymnasiums_own_layers_do_not_hide_the_hook():
    environment = wrappers.TimeLimit(wrappers.OrderEnforcing(PassingOn(SparingEnvironment())), 20)
    assert drawing_of(environment) is not None


@pytest.mark.parametrize(
    "environment",
    [
        SeenEnvironment(),
        Remembering(SparingEnvironment()),
        wrappers.TimeLimit(Remembering(SparingEnvironment()), 20),
        wrappers.FrameStackObservation(SparingEnvironment(), 2),
    ],
)
def test_a_wrapper_that_might_keep_pictures_has_all_of_them_drawn(environment):
    assert drawing_of(environment) is None


@pytest.mark.parametrize("hard_reset", [True, False])
def test_robosuites_cameras_draw_what_is_wanted_at_the_moment_at_which_it_would_be_drawn(hard_reset):
    tasks = [PointTask(hard_reset=hard_reset) for _ in range(2)]
    expected = played(GymWrapper(tasks[0]), (True,) * len(WANTED))
    built = tasks[1].drawn
    agree(played(wrappers.TimeLimit(OwnName(tasks[1]), 20)), expected, "front_image")
    # A hard reset tries the new sensor and draws with it.
    resets = 2 * 2 if hard_reset else 2
    assert tasks[1].drawn - built == resets + 2 * sum(WANTED[1:])


def test_a_camera_that_was_read_too_early_is_an_error_and_no_picture_of_another_time():
    task = PointTask(hard_reset=False)
    slot = EnvSlot(GymWrapper(task), (), drawing_of(GymWrapper(task)))
    slot.reset(1, pictures=True)
    slot.step(np.zeros(1, np.float32), pictures=False)
    task._observables["front_image"]._time = -1.0
    with pytest.raises(RuntimeError, match="robosuite did not read 'front_image' in this step; --eager_pictures"):
        slot.step(np.zeros(1, np.float32), pictures=True)


@pytest.mark.parametrize(
    "environment",
    [
        GymWrapper(PointTask(depth=True)),
        GymWrapper(PointTask(camera_period_s=0.1)),
        FrameStack(PointTask()),
        Remembering(GymWrapper(PointTask())),
    ],
    ids=["depth_with_it", "read_every_second_step", "wrapper_of_ones_own", "wrapper_of_gymnasium"],
)
def test_other_cameras_of_robosuite_draw_everything(environment: Any):
    assert drawing_of(environment) is None


class Vouching(GymWrapper):
    """Says of some packages that their observables do not depend on pictures."""

    trusted: tuple[str, ...] = ()

    def robosuite_cameras(self):
        return self.env, ["front_image"], self.trusted


@pytest.mark.parametrize(("trusted", "draws_everything"), [((), True), (("libero",), True), (("tests",), False)])
def test_an_observable_of_another_package_may_need_the_picture_unless_that_package_is_trusted(
    trusted, draws_everything
):
    task = PointTask()

    def colour(cache: dict) -> np.ndarray:
        return np.array([cache.get("front_image", np.zeros(1)).mean()])

    task._observables["place"].set_sensor(colour)
    assert drawing_of(GymWrapper(task)) is None
    environment = Vouching(task)
    environment.trusted = trusted
    assert (drawing_of(environment) is None) == draws_everything


def test_the_environment_of_the_document_draws_what_is_wanted():
    names: dict[str, Any] = {}
    document = (ROOT / "docs" / "how_to" / "external_environments.md").read_text()
    exec(blocks(document, "python")[0], names)
    block: Any = names["PushBlock"]()
    slot = EnvSlot(gymnasium.wrappers.TimeLimit(block, 5), (), drawing_of(block))
    assert slot.description()["draws_on_demand"]
    assert set(slot.reset(1, pictures=False).observation) == {"place"}
    first = slot.step(np.ones(2, np.float32), pictures=True).observation
    assert first["front"].shape == (64, 64, 3)
    block.drawn = None
    assert set(slot.step(np.ones(2, np.float32), pictures=False).observation) == {"place"}
