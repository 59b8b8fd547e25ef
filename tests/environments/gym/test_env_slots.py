"""Env slots in worker processes."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.options import read_options
from isaaclab_arena.distributed.context import process_is_running
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotSource
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.workers import _KEPT, WorkerOptions, spare_workers_kept, stop_kept_workers
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS, Trace, build, problems, run

# A preloaded interpreter's own process is not the one that makes the steps, and it is the one that is killed.
KILLABLE = {**IN_WORKERS, "python": sys.executable}


def played(**options) -> dict[int, list[tuple[bytes, float]]]:
    trace = Trace()
    run(num_envs=3, observer=trace, **options)
    return trace.steps


@pytest.fixture(scope="module")
def here():
    return played()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"envs_per_worker": 2, "pipeline": 2},
        {"steps_while_starting": 1},
        {"steps_while_starting": 50},
        {"steps_while_starting": 2, "pipeline": 2},
        {"envs_per_worker": 3},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()) or "one each",
)
def test_episodes_are_the_same_however_workers_share_env_slots_and_steps(here, options):
    assert played(**options, **IN_WORKERS) == here


class Killer(Trace):
    """Kills the worker of the first env slots at the second step."""

    num_steps = 0

    def on_step(self, environment, transition) -> None:
        super().on_step(environment, transition)
        self.num_steps += 1
        if self.num_steps == 2:
            os.kill(environment._slots.workers[0].process.pid, signal.SIGKILL)


def test_a_worker_that_is_killed_costs_one_episode_and_the_others_are_the_same(here):
    seen = Killer()
    records = run(num_envs=3, observer=seen, envs_per_worker=3, **KILLABLE)
    [error] = [index for index, record in records.items() if record.outcome is Outcome.ERROR]
    assert records[error].error == "the worker died by signal 9"
    assert {**seen.steps, error: None} == {**here, error: None}


@pytest.mark.parametrize(
    ("misbehaviour", "error"),
    [("look_up", "KeyError: 'gripper'"), ("die", "the worker died with exit code 3")],
)
def test_an_environment_that_fails_costs_its_own_episode(misbehaviour, error):
    kwargs = {"misbehaviour": misbehaviour, "only_odd": True, "at_step": 3}
    records = run(num_envs=3, num_episodes=4, make_kwargs=kwargs, envs_per_worker=3, **IN_WORKERS)
    odd = {index for index, record in run(num_episodes=4).items() if record.length % 2}
    assert {index: record.error for index, record in records.items() if record.error} == dict.fromkeys(odd, error)


def test_an_environment_that_hangs_costs_its_own_episode():
    kwargs = {"misbehaviour": "hang", "only_odd": True}
    options = {**IN_WORKERS, "step_timeout_s": 0.3, "envs_per_worker": 2}
    records = run(num_envs=2, num_episodes=2, make_kwargs=kwargs, **options)
    # Two env slots have twice the time.
    assert {record.error for record in records.values()} == {None, "the worker did not answer within 0.6 s"}


RESETS = {index: {"seed": index, "options": None} for index in range(2)}


@contextmanager
def slots_of(*, num_envs: int = 2, make_kwargs: dict[str, Any] | None = None, **options) -> Iterator[EnvSlots]:
    """Started env slots of the fake environment."""
    source = SlotSource(kind="gym", name=ID, make_kwargs=make_kwargs or {}, code="fakes")
    with closing(EnvSlots(source, num_envs, WorkerOptions(**{**IN_WORKERS, **options}))) as slots:
        slots.reset({index: RESETS[index] for index in range(num_envs)}, [])
        yield slots


def pid_of(slots: EnvSlots, number: int) -> int:
    process = slots.workers[number].process
    assert process is not None
    return process.pid


@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_a_worker_that_is_killed_between_two_episodes_costs_none(envs_per_worker):
    with slots_of(envs_per_worker=envs_per_worker) as slots:
        starts = slots.numbers["obs"].tobytes()
        for number in range(len(slots.workers)):
            os.kill(pid_of(slots, number), signal.SIGKILL)
        slots.reset({1: RESETS[1]}, [])
        assert slots.numbers["obs"].tobytes() == starts


def test_a_worker_that_is_killed_while_an_episode_starts_costs_none():
    with slots_of(steps_while_starting=2) as slots:
        start = slots.numbers["obs"][1].tobytes()
        slots.begin_reset({1: RESETS[1]}, [])
        os.kill(pid_of(slots, 1), signal.SIGKILL)
        assert slots.step(np.ones((2, 2), np.float32), [0]).failures == {}
        slots.finish_reset([1])
        assert slots.numbers["obs"][1].tobytes() == start


@pytest.mark.parametrize(("envs_per_worker", "expected"), [(1, 8), (2, 0)])
def test_a_worker_with_several_env_slots_makes_no_steps_while_one_of_them_starts(envs_per_worker, expected):
    with slots_of(steps_while_starting=8, envs_per_worker=envs_per_worker) as slots:
        assert slots.steps_while_starting == expected


class SaysEnough(RandomActionPolicy):
    """Has nothing more to do in an episode after one, two or three steps."""

    def __init__(self) -> None:
        super().__init__()
        self._left = torch.zeros(3, dtype=torch.int64)

    def start_episodes(self, env, starts) -> None:
        super().start_episodes(env, starts)
        for start in starts:
            self._left[start.env_id] = 1 + start.episode.episode_index % 3

    def get_action(self, env, observation):
        self._left -= 1
        return super().get_action(env, observation)

    def finished(self):
        return self._left <= 0


def test_an_env_slot_whose_policy_had_enough_makes_no_step_while_it_starts():
    expected = played(policy=SaysEnough())
    assert [len(expected[index]) for index in range(6)] == [2, 3, 4, 2, 3, 4]
    assert played(policy=SaysEnough(), steps_while_starting=2, **IN_WORKERS) == expected


class Chain:
    """One environment after the other in workers of the same options, and what each played of one episode."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.played: list[bytes] = []

    def play(self, *, num_envs: int = 1, code: str | None = "fakes", **make_kwargs) -> None:
        source = SlotSource(kind="gym", name=ID, make_kwargs=make_kwargs, code=code)
        with closing(EnvSlots(source, num_envs, WorkerOptions(**IN_WORKERS))) as slots:
            slots.reset({index: {"seed": 3, "options": None} for index in range(num_envs)}, [])
            for _ in range(2):
                slots.step(np.ones((num_envs, 2), np.float32), range(num_envs))
            self.pids += [pid_of(slots, number) for number in range(len(slots.workers))]
            self.played.append(slots.numbers["numbers" if make_kwargs.get("picture") else "obs"][0].tobytes())


def test_workers_of_one_environment_serve_the_next_which_plays_as_in_new_ones():
    chain = Chain()
    with spare_workers_kept():
        chain.play()
        # It has other arrays, and more of them.
        chain.play(picture=True, num_envs=2)
        chain.play()
    assert len(set(chain.pids)) == 2
    assert len(set(chain.played)) == 1
    assert not any(process_is_running(pid, None) for pid in chain.pids)


@pytest.mark.parametrize(("first", "then"), [(None, None), ("fakes", "others")])
def test_workers_that_may_hold_something_else_serve_no_other_environment(first, then):
    chain = Chain()
    with spare_workers_kept():
        chain.play(code=first)
        chain.play(code=then)
    assert len(set(chain.pids)) == 2


def test_a_worker_in_which_an_environment_failed_or_that_was_closed_while_one_started_serves_no_other():
    chain = Chain()
    with spare_workers_kept():
        with slots_of(make_kwargs={"misbehaviour": "raise", "at_step": 1}, envs_per_worker=2) as slots:
            assert [*slots.step(np.ones((2, 2), np.float32), [0]).failures] == [0]
            failed = pid_of(slots, 0)
        with slots_of(num_envs=1, steps_while_starting=2) as slots:
            assert pid_of(slots, 0) != failed
            slots.begin_reset({0: RESETS[1]}, [])
            starting = pid_of(slots, 0)
        chain.play()
    assert not {failed, starting} & set(chain.pids)


def test_environments_that_share_something_in_a_process_are_refused():
    neighbours = "gym:tests.environments.gym.gym_fakes:Fake/Crowded-v0"
    with pytest.raises(EnvironmentBuildError, match="envs_per_worker to 1"):
        build(neighbours, num_envs=2, envs_per_worker=2, **IN_WORKERS)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"envs_per_worker": 2}, "envs_per_worker"),
        ({**IN_WORKERS, "envs_per_worker": 2, "seeded": False}, "envs_per_worker"),
        ({"steps_while_starting": 3}, "steps_while_starting"),
        ({**IN_WORKERS, "envs_per_worker": 2, "steps_while_starting": 3}, "steps_while_starting"),
    ],
)
def test_what_env_slots_in_workers_need_is_told_before_anything_starts(options, key):
    assert problems(f"gym:{ID}", **options).startswith(f"{key}: ")


@pytest.mark.parametrize(("looked_up", "becomes_one"), [([ID], True), ([ID, "CartPole-v1"], False)])
def test_a_worker_that_looked_up_this_environment_alone_becomes_its_first_one(here, looked_up, becomes_one):
    stop_kept_workers()
    for name in looked_up:
        builder = ENVIRONMENTS.get(f"gym:{name}")
        builder.check(read_options(builder.config_class, IN_WORKERS, owner="environment"))
    [finder] = [each.worker for each in _KEPT if each.questions]
    with closing(build(num_envs=2, **IN_WORKERS)) as environment:
        assert isinstance(environment._slots, EnvSlots)
        assert (environment._slots.workers[0].process is finder) is becomes_one
        assert finder.is_running is becomes_one
    assert not finder.is_running
    assert played(**IN_WORKERS) == here
