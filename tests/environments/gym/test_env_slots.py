"""Env slots in worker processes, and their pictures."""

import os
import signal
import sys
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.options import read_options
from isaaclab_arena.distributed.context import process_is_running
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotSource
from isaaclab_arena.environments.gym.environment import SlotPictures
from isaaclab_arena.errors import EnvironmentBuildError, PolicyError, UnannouncedPictureError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, Pictures
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.workers import _KEPT, WorkerOptions, WorkerProcess, spare_workers_kept, stop_kept_workers
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS, Trace, build, run
from tests.environments.gym.test_builder import problems

# Env slots in workers play the same episodes however many a worker holds, and a worker that dies costs one.


class Killer(Observer):
    """Kills the worker of the first env slots at a moment."""

    def __init__(self, moment: str, at_call: int) -> None:
        self._moment, self._at_call, self._calls = moment, at_call, 0

    def on_step(self, environment, transition) -> None:
        self._strike("step", environment)

    def on_episode_end(self, environment, record) -> None:
        self._strike("end", environment)

    def _strike(self, moment: str, environment) -> None:
        self._calls += moment == self._moment
        if moment == self._moment and self._calls == self._at_call:
            os.kill(environment._slots.workers[0].process.pid, signal.SIGKILL)


def played(**options) -> dict[int, list[tuple[bytes, float]]]:
    trace = Trace()
    run(num_envs=3, observer=trace, **options)
    return trace.steps


@pytest.fixture(scope="module")
def here():
    return played()


@pytest.mark.parametrize(("envs_per_worker", "pipeline"), [(1, 1), (2, 1), (2, 2)])
def test_episodes_are_the_same_however_many_env_slots_a_worker_holds(here, envs_per_worker, pipeline):
    assert played(envs_per_worker=envs_per_worker, pipeline=pipeline, **IN_WORKERS) == here


@pytest.mark.parametrize(("steps_while_starting", "pipeline"), [(1, 1), (4, 1), (50, 1), (2, 2)])
@pytest.mark.parametrize("steps_per_message", [1, 3])
def test_episodes_are_the_same_whatever_other_env_slots_do_while_they_start(
    here, steps_while_starting, pipeline, steps_per_message
):
    options = {"steps_while_starting": steps_while_starting, "steps_per_message": steps_per_message}
    assert played(pipeline=pipeline, **options, **IN_WORKERS) == here


@pytest.mark.parametrize(
    ("envs_per_worker", "steps_per_message", "pipeline"), [(1, 2, 1), (2, 3, 1), (3, 64, 1), (2, 4, 2)]
)
def test_episodes_are_the_same_however_many_planned_steps_a_message_asks_for(
    here, envs_per_worker, steps_per_message, pipeline
):
    options = {"envs_per_worker": envs_per_worker, "steps_per_message": steps_per_message}
    assert played(pipeline=pipeline, **options, **IN_WORKERS) == here


def test_a_worker_that_is_killed_costs_one_episode_and_the_others_are_the_same(here):
    trace = Trace()

    class Both(Killer):
        def on_episode_start(self, environment, starts, observation) -> None:
            trace.on_episode_start(environment, starts, observation)

        def on_step(self, environment, transition) -> None:
            trace.on_step(environment, transition)
            super().on_step(environment, transition)

        def on_episode_end(self, environment, record) -> None:
            trace.on_episode_end(environment, record)

    # A preloaded interpreter's own process is not the one that makes the steps.
    options = {**IN_WORKERS, "python": sys.executable}
    records = run(num_envs=3, observer=Both("step", 2), envs_per_worker=3, **options)
    errors = [index for index, record in records.items() if record.outcome is Outcome.ERROR]
    assert len(errors) == 1
    assert records[errors[0]].error == "the worker died by signal 9"
    assert {index: steps for index, steps in trace.steps.items() if index not in errors} == {
        index: steps for index, steps in here.items() if index not in errors
    }


def test_an_environment_that_brings_its_worker_down_costs_its_own_episode():
    def outcomes(**options) -> dict[int, Outcome | None]:
        records = run(num_envs=3, num_episodes=4, **options)
        return {index: record.outcome for index, record in records.items()}

    kwargs = {"misbehaviour": "raise", "only_odd": True}
    expected = outcomes(make_kwargs=kwargs)
    assert set(expected.values()) > {Outcome.ERROR}
    kwargs["misbehaviour"] = "die"
    assert outcomes(make_kwargs=kwargs, envs_per_worker=3, **IN_WORKERS) == expected


@pytest.mark.parametrize("misbehaviour", ["raise", "die"])
def test_an_environment_that_fails_in_a_planned_step_fails_in_that_step(misbehaviour):
    def told(**options) -> dict[int, tuple[Outcome | None, int, str | None]]:
        kwargs = {"misbehaviour": misbehaviour, "only_odd": True, "at_step": 3}
        records = run(num_envs=3, num_episodes=4, make_kwargs=kwargs, envs_per_worker=3, **options, **IN_WORKERS)
        return {index: (record.outcome, record.length, record.error) for index, record in records.items()}

    expected = told()
    assert {outcome for outcome, _, _ in expected.values()} > {Outcome.ERROR}
    assert told(steps_per_message=8) == expected


def test_a_worker_that_is_killed_with_planned_steps_costs_none(here):
    observer = Killer("step", 2)
    options = {**IN_WORKERS, "python": sys.executable, "steps_per_message": 3}
    records = run(num_envs=3, observer=observer, envs_per_worker=3, **options)
    assert {record.error for record in records.values()} == {None}
    assert observer._calls > 2
    assert {index: record.length for index, record in records.items()} == {
        index: len(steps) - 1 for index, steps in here.items()
    }


def test_a_policy_that_gives_other_actions_than_it_planned_is_refused():
    class Fickle(RandomActionPolicy):
        def planned(self, env_id: int) -> torch.Tensor:
            return super().planned(env_id) + 1.0

    with pytest.raises(PolicyError, match=r"the policy planned the actions .* must stay as they are"):
        run(num_envs=2, policy=Fickle(), steps_per_message=3, **IN_WORKERS)


def test_what_an_environment_renders_is_not_filmed_where_steps_are_made_ahead():
    options = {"make_kwargs": {"render_mode": "rgb_array"}, **IN_WORKERS}
    with closing(build(**options)) as environment:
        assert VIEWPORT in environment.filmable
    with closing(build(steps_per_message=2, **options)) as environment:
        assert environment.filmable == ()
        with pytest.raises(KeyError, match="can be filmed with steps_per_message: 1"):
            environment.film([0], [VIEWPORT])


def test_steps_are_not_made_ahead_where_pictures_are_observed():
    with pytest.raises(EnvironmentBuildError, match="observes pictures; set steps_per_message to 1"):
        build(make_kwargs={"picture": True}, steps_per_message=2, **IN_WORKERS)


def test_an_environment_that_hangs_costs_its_own_episode():
    kwargs = {"misbehaviour": "hang", "only_odd": True}
    options = {**IN_WORKERS, "step_timeout_s": 0.3, "envs_per_worker": 2}
    records = run(num_envs=2, num_episodes=2, make_kwargs=kwargs, **options)
    assert {record.error for record in records.values()} == {None, "the worker did not answer within 0.6 s"}


@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_a_worker_that_is_killed_between_two_episodes_costs_none(envs_per_worker):
    with_workers = WorkerOptions(**{**IN_WORKERS, "envs_per_worker": envs_per_worker})
    slots = EnvSlots(SlotSource(kind="gym", name=ID), 2, with_workers)
    resets = {index: {"seed": index, "options": None} for index in range(2)}
    slots.reset(resets, [])
    starts = slots.numbers["obs"].tobytes()
    for worker in slots.workers:
        process = worker.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    slots.reset({1: resets[1]}, [])
    assert slots.numbers["obs"].tobytes() == starts
    slots.close()


@pytest.mark.parametrize(("envs_per_worker", "expected"), [(1, 8), (2, 0)])
def test_a_worker_with_several_env_slots_makes_no_steps_while_one_of_them_starts(envs_per_worker, expected):
    options = {**IN_WORKERS, "steps_while_starting": 8, "envs_per_worker": envs_per_worker}
    with closing(EnvSlots(SlotSource(kind="gym", name=ID), 2, WorkerOptions(**options))) as slots:
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


def test_a_worker_that_is_killed_while_an_episode_starts_costs_none():
    options = WorkerOptions(**{**IN_WORKERS, "steps_while_starting": 2})
    slots = EnvSlots(SlotSource(kind="gym", name=ID), 2, options)
    resets = {index: {"seed": index, "options": None} for index in range(2)}
    slots.reset(resets, [])
    start = slots.numbers["obs"][1].tobytes()
    process = slots.workers[1].process
    assert process is not None
    slots.begin_reset({1: resets[1]}, [])
    os.kill(process.pid, signal.SIGKILL)
    assert slots.step(np.ones((2, 2), np.float32), [0]).failures == {}
    slots.finish_reset([1])
    assert slots.numbers["obs"][1].tobytes() == start
    slots.close()


def test_a_worker_that_is_closed_while_an_episode_starts_serves_nobody_else():
    source = SlotSource(kind="gym", name=ID, code="fakes")
    chain = Chain()
    with spare_workers_kept():
        slots = EnvSlots(source, 1, WorkerOptions(**{**IN_WORKERS, "steps_while_starting": 2}))
        slots.begin_reset({0: {"seed": 1, "options": None}}, [])
        process = slots.workers[0].process
        assert process is not None
        slots.close()
        chain.play()
    assert process.pid not in chain.pids


@pytest.mark.parametrize("more", [{"python": None}, {"envs_per_worker": 2}])
def test_steps_while_an_episode_starts_need_a_worker_for_each_env_slot(more):
    options = {**IN_WORKERS, "python": sys.executable, "steps_while_starting": 3, **more}
    told = "steps_while_starting: above 0 needs python and envs_per_worker 1: a worker that starts an episode makes no"
    assert told in problems(f"gym:{ID}", **options)


class Chain:
    """One environment after the other in workers of the same options, and what each played of one episode."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.played: list[bytes] = []

    def play(self, *, num_envs: int = 1, code: str | None = "fakes", **make_kwargs) -> None:
        source = SlotSource(kind="gym", name=ID, make_kwargs=make_kwargs, code=code)
        slots = EnvSlots(source, num_envs, WorkerOptions(**IN_WORKERS))
        slots.reset({index: {"seed": 3, "options": None} for index in range(num_envs)}, [])
        for _ in range(2):
            slots.step(np.ones((num_envs, 2), np.float32), range(num_envs))
        self.pids += [worker.process.pid for worker in slots.workers if worker.process is not None]
        self.played.append(slots.numbers["numbers" if make_kwargs.get("picture") else "obs"][0].tobytes())
        slots.close()


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


@pytest.mark.parametrize(("first", "then"), [({"code": None}, {"code": None}), ({}, {"code": "others"})])
def test_workers_that_may_hold_something_else_serve_no_other_environment(first, then):
    chain = Chain()
    with spare_workers_kept():
        chain.play(**first)
        chain.play(**then)
    assert len(set(chain.pids)) == 2


def test_a_worker_in_which_an_environment_failed_serves_no_other():
    source = SlotSource(kind="gym", name=ID, make_kwargs={"misbehaviour": "raise", "at_step": 1}, code="fakes")
    chain = Chain()
    with spare_workers_kept():
        slots = EnvSlots(source, 2, WorkerOptions(**{**IN_WORKERS, "envs_per_worker": 2}))
        slots.reset({index: {"seed": index, "options": None} for index in range(2)}, [])
        assert [*slots.step(np.ones((2, 2), np.float32), [0]).failures] == [0]
        process = slots.workers[0].process
        assert process is not None
        slots.close()
        chain.play()
    assert process.pid not in chain.pids


def test_a_scene_that_a_reset_replaced_takes_no_memory_any_more():
    trace = Trace()
    run("gym:tests.environments.gym.gym_fakes:Fake/Littering-v0", num_episodes=5, observer=trace, **IN_WORKERS)
    scenes = {index: np.frombuffer(steps[-1][0], np.float32).tolist() for index, steps in trace.steps.items()}
    assert scenes == {index: [1.0] for index in range(5)}


def test_whoever_waits_for_workers_is_told_when_they_have_answered_or_are_late():
    hangs = SlotSource(kind="gym", name=ID, make_kwargs={"misbehaviour": "hang", "at_step": 1})
    slots = EnvSlots(hangs, 1, WorkerOptions(**{**IN_WORKERS, "step_timeout_s": 0.2}))
    slots.reset({0: {"seed": 1, "options": None}}, [])
    slots.begin_step(np.ones((1, 2), np.float32), [0])
    assert len(slots.unanswered) == 1
    time.sleep(0.3)
    assert slots.unanswered == []
    assert slots.finish_step().failures == {0: "the worker did not answer within 0.2 s"}
    slots.close()


NEIGHBOURS = "tests.environments.gym.gym_fakes:Fake/Crowded-v0"


def test_environments_that_share_something_in_a_process_are_refused():
    with pytest.raises(EnvironmentBuildError, match=r"moves differently beside another .* set envs_per_worker to 1"):
        build(f"gym:{NEIGHBOURS}", num_envs=2, envs_per_worker=2, **IN_WORKERS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "envs_per_worker: needs python: in this process there are no workers"),
        ({**IN_WORKERS, "seeded": False}, "envs_per_worker: above 1 needs seeded: "),
    ],
)
def test_several_env_slots_need_a_worker_and_episodes_that_repeat(options, message):
    assert message in problems(f"gym:{ID}", envs_per_worker=2, **options)


def found_by(*names: str) -> WorkerProcess:
    """Look environments up in a worker, and return it."""
    stop_kept_workers()
    for name in names:
        builder = ENVIRONMENTS.get(f"gym:{name}")
        builder.check(read_options(builder.config_class, IN_WORKERS, owner="environment"))
    [kept] = [each for each in _KEPT if each.questions]
    return kept.worker


def processes_of(environment: Any) -> list[WorkerProcess]:
    return [worker.process for worker in environment._slots.workers]


def test_the_worker_that_looked_an_environment_up_becomes_its_first_one(here):
    finder = found_by(ID)
    environment = build(num_envs=2, **IN_WORKERS)
    first, second = processes_of(environment)
    assert first is finder is not second
    environment.close()
    assert not finder.is_running
    trace = Trace()
    run(num_envs=3, observer=trace, **IN_WORKERS)
    assert trace.steps == here


def test_a_worker_that_looked_up_other_environments_too_becomes_nobodys():
    finder = found_by(ID, "CartPole-v1")
    environment = build(num_envs=2, **IN_WORKERS)
    assert finder not in processes_of(environment)
    assert not finder.is_running
    environment.close()


# A picture is of the present, or it is not shown.


CPU = torch.device("cpu")
NONE_REST = np.zeros(3, bool)


def kept(*, always_drawn: bool = False) -> SlotPictures:
    return SlotPictures({"front": ArraySpec(shape=(2, 2, 3), dtype=torch.uint8)}, 3, always_drawn=always_drawn)


def picture(value: int) -> dict[str, np.ndarray]:
    return {"front": np.full((2, 2, 3), value, np.uint8)}


def move(pictures: SlotPictures, moving: list[int], values: dict[int, int], *, resting: np.ndarray = NONE_REST) -> None:
    seen = pictures.wanted(moving, resting)
    for env_id in moving:
        pictures.put(env_id, picture(values[env_id]) if env_id in seen else None)


def test_without_a_word_everything_is_wanted():
    pictures = kept()
    move(pictures, [0, 2], {0: 5, 2: 7})
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, torch.Tensor)
    assert shown[:, 0, 0, 0].tolist() == [5, 0, 7]
    assert pictures.num_drawn == 2


def test_an_announcement_holds_once():
    pictures = kept()
    pictures.announced = [1]
    assert pictures.wanted([0, 1], NONE_REST) == {1}
    assert pictures.wanted([0, 1], NONE_REST) == {0, 1}


def test_an_env_slot_that_moved_without_a_picture_shows_none():
    pictures = kept()
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    pictures.announced = [1]
    move(pictures, [0, 1], {0: 4, 1: 5})
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, Pictures)
    assert shown.env_ids == (1, 2)
    assert shown[[1, 2]][:, 0, 0, 0].tolist() == [5, 3]
    with pytest.raises(UnannouncedPictureError, match="'front' of env slots 0 was not drawn"):
        pictures.of("front", [1, 0])
    assert pictures.of("front", [2, 1])[:, 0, 0, 0].tolist() == [3, 5]


@pytest.mark.parametrize(("announced", "env_ids"), [(None, [0, 2]), ([0, 2], [0, 2]), ([2], [2])])
def test_an_env_slot_that_rests_since_a_step_without_a_picture_is_black_where_it_is_announced(announced, env_ids):
    pictures = kept()
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    pictures.announced = []
    move(pictures, [0, 1], {0: 9, 1: 9})
    pictures.announced = announced
    move(pictures, [2], {2: 4}, resting=np.array([True, False, False]))
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, Pictures)
    assert shown.env_ids == tuple(env_ids)
    assert shown[env_ids][:, 0, 0, 0].tolist() == [{0: 0, 2: 4}[env_id] for env_id in env_ids]


@pytest.mark.parametrize(("always_drawn", "num_drawn"), [(False, 1), (True, 3)])
def test_pictures_that_an_environment_draws_all_the_same_are_counted(always_drawn, num_drawn):
    pictures = kept(always_drawn=always_drawn)
    pictures.announced = [2]
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    assert pictures.num_drawn == num_drawn
