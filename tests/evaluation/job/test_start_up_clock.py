import logging
from dataclasses import dataclass, field

import pytest
import torch

from isaaclab_arena.evaluation.builds import StartUpClock, StartUpPart
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.sim.threads import KernelTimes
from isaaclab_arena.storage.reports import StartUp
from tests.fakes import CoinConfig, CoinEnvironment

ENVIRONMENT = CoinEnvironment(CoinConfig(), 1)


@dataclass
class World:
    """Time as it passes, and kernels as they come."""

    now_s: float = 100.0
    kernels: KernelTimes = field(default_factory=lambda: KernelTimes(compile_s=50.0))

    def passes(self, seconds: float, **kernels: float) -> None:
        self.now_s += seconds
        self.kernels += KernelTimes(**kernels)

    def clock(self, import_s: float | None = 2.0) -> StartUpClock:
        return StartUpClock("lift", import_s=import_s, now_s=lambda: self.now_s, kernels=lambda: self.kernels)


def make_a_step(clock: StartUpClock) -> None:
    observation = ENVIRONMENT.reset(torch.tensor([0]), [{"coin.heads": 0, "coin.number": 0}])
    clock.on_episode_start(ENVIRONMENT, [], observation)
    action = torch.zeros(1, 2)
    step = ENVIRONMENT.step(action)
    running = torch.tensor([True])
    made = Transition(running=running, num_running=1, observation=observation, action=action, step=step)
    clock.on_step(ENVIRONMENT, made)


def test_every_second_until_the_first_step_belongs_to_one_part_and_those_of_kernels_to_them():
    world = World()
    clock = world.clock()
    world.passes(15.0, compile_s=9.0, wait_s=4.0)
    clock.finish(StartUpPart.ENVIRONMENT)
    world.passes(1.0)
    clock.finish(StartUpPart.POLICY)
    world.passes(0.75, load_s=0.25)
    clock.finish(StartUpPart.FIRST_RESET)
    world.passes(3.0, compile_s=2.0)
    clock.finish(StartUpPart.FIRST_STEP)
    assert clock.start_up() == StartUp(
        import_s=2.0,
        compile_s=11.0,
        kernel_wait_s=4.0,
        kernel_load_s=0.25,
        build_environment_s=2.0,
        build_policy_s=1.0,
        first_reset_s=0.5,
        first_step_s=1.0,
    )


def test_what_comes_after_the_first_step_is_no_start_up():
    world = World()
    clock = world.clock()
    make_a_step(clock)
    before = clock.start_up()
    world.passes(5.0, compile_s=5.0)
    make_a_step(clock)
    clock.finish(StartUpPart.ENVIRONMENT)
    assert clock.start_up() == before
    assert before.first_step_s == 0.0


def test_a_job_that_fails_on_the_way_tells_how_far_it_came():
    world = World()
    clock = world.clock(import_s=None)
    world.passes(4.0, compile_s=3.0)
    assert clock.start_up() == StartUp(compile_s=3.0)


def test_kernels_that_threads_load_side_by_side_leave_nothing_negative():
    world = World()
    clock = world.clock()
    world.passes(1.0, load_s=1.5)
    clock.finish(StartUpPart.ENVIRONMENT)
    assert clock.start_up().build_environment_s == 0.0


@pytest.mark.parametrize(("seconds", "level"), [(0.2, "DEBUG"), (14.0, "INFO")])
def test_a_long_start_is_told_on_the_screen_and_every_one_in_the_log(caplog, seconds, level):
    world = World()
    clock = world.clock(import_s=0.1)
    world.passes(seconds)
    clock.finish(StartUpPart.ENVIRONMENT)
    with caplog.at_level(logging.DEBUG):
        make_a_step(clock)
        make_a_step(clock)
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage() == f"start-up of job 'lift': imports 0.1 s, environment {seconds:.1f} s"


def test_a_start_up_in_words_leaves_out_parts_that_took_no_time(caplog):
    world = World()
    clock = world.clock(import_s=2.1)
    world.passes(15.1, compile_s=14.0, load_s=0.3)
    clock.finish(StartUpPart.ENVIRONMENT)
    clock.finish(StartUpPart.FIRST_RESET)
    world.passes(0.04)
    with caplog.at_level(logging.INFO):
        make_a_step(clock)
    words = "imports 2.1 s, kernels compiled 14.0 s, kernels loaded 0.3 s, environment 0.8 s, first step 0.04 s"
    assert caplog.messages == [f"start-up of job 'lift': {words}"]
