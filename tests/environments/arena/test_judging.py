"""Verdicts and observations that are replayed are those that are made step by step, bit for bit."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.mdp.task import Task, Verdict
from isaaclab_arena.environments.tasks.velocity_go1 import VelocityGo1
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.sim.backend import Backend, Capture, capture_on
from tests.environments.building import ALL_ENVIRONMENTS, CPU, FLOOR_ENVIRONMENTS, episode, start
from tests.environments.comparing import assert_the_same, flat, random_actions, tensors_of
from tests.sim.tape import tape

NUM_ENVS = 3
STEPS = 14
GPU = torch.device("cuda:0")


def built(
    name: str, *, capture: Capture | None = None, device: torch.device = CPU, parts=None, **options
) -> ArenaEnvironment:
    """Return an environment that replays its verdicts, or does not; ``parts`` replaces some of its builder."""
    builder = ENVIRONMENTS.get(name)

    def make_backend(*args, **how) -> Backend:
        backend = builder.make_backend(*args, **how)
        backend.capture = capture
        return backend

    changed = replace(builder, make_backend=make_backend, **(parts or {}))
    return changed.build(changed.config_class(**options), num_envs=NUM_ENVS, device=device, num_threads=1)


def steps_of(env: ArenaEnvironment) -> list[dict[str, torch.Tensor]]:
    """Results of steps in some of which an env slot rests, times out or begins anew."""
    start(env, [0, 1])
    env._length[0] = env.max_episode_length - STEPS + 4
    given = []
    for index, action in enumerate(random_actions(env, STEPS)):
        given.append(tensors_of(env.step(action)))
        if index in {2, 6}:
            conditions = env.draw_conditions(episode(40 + index).conditions_generator())
            given.append(flat(env.reset(torch.tensor([1]), [conditions])))
    return given


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_task_gives_the_same_where_its_verdicts_are_replayed(name, caplog):
    with caplog.at_level(logging.INFO):
        assert_the_same(steps_of(built(name, capture=tape)), steps_of(built(name)))
    assert "not replayed" not in caplog.text


def test_a_task_may_call_a_tensor_of_its_own_cleared():
    task = built("cartpole").task
    vars(task)["cleared"] = torch.ones(NUM_ENVS, dtype=torch.bool)
    task.held_steps[:] = 5
    task.begin(built("cartpole").backend, torch.tensor([1]))
    assert task.held_steps.tolist() == [5, 0, 5]


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_task_says_that_it_can_be_captured(name):
    assert built(name).task.capturable


def test_pictures_are_seen_beside_replayed_observations():
    options = {"enable_cameras": True, "camera_size": 16}
    replayed, plain = built("lift_object", capture=tape, **options), built("lift_object", **options)
    found, wanted = steps_of(replayed), steps_of(plain)
    assert_the_same(found, wanted)
    assert any(name.startswith(CAMERAS) for name in found[-1])


def test_what_a_step_gave_is_not_changed_by_later_steps():
    env = built("velocity_go1", capture=tape)
    start(env)
    given = [tensors_of(env.step(action)) for action in random_actions(env, STEPS)[:6]]
    kept = [{name: value.clone() for name, value in each.items()} for each in given]
    for action in random_actions(env, STEPS)[6:]:
        env.step(action)
    assert_the_same(given, kept)


def test_a_task_that_does_not_say_so_is_judged_step_by_step():
    task = CountingWalk()
    env = built("velocity_go1", capture=tape, parts={"make_task": lambda _: task})
    start(env)
    for action in random_actions(env, STEPS):
        env.step(action)
    assert task.judged == STEPS


def test_an_environment_that_is_closed_can_go_on():
    env, plain = built("reach", capture=tape), built("reach")
    for each in (env, plain):
        start(each)
    for number, action in enumerate(random_actions(env, STEPS)):
        if number == 6:
            env.close()
        assert_the_same([tensors_of(env.step(action))], [tensors_of(plain.step(action))])


class CountingWalk(VelocityGo1):
    """Judges by a number of its own, which no graph knows."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0

    def judge(self, backend, running) -> Verdict:
        self.judged += 1
        return super().judge(backend, running)


def test_a_task_with_a_verdict_of_its_own_is_judged_step_by_step_until_it_says_otherwise():
    assert issubclass(CountingWalk, Task)
    assert not CountingWalk.capturable
    says_so = type("SaysSo", (CountingWalk,), {"capturable": True})
    assert says_so.capturable
    assert VelocityGo1.capturable
    # A class beside the one that judges says nothing of that verdict.
    says_so_of_others = type("Fast", (), {"capturable": True})
    assert not type("Mixed", (says_so_of_others, CountingWalk), {}).capturable
    assert type("Mixed", (says_so_of_others, CountingWalk), {"capturable": True}).capturable


def memory_of(task: Task) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in task.memory().items()}


def judged_again(env: ArenaEnvironment, before: Mapping[str, torch.Tensor], moved: torch.Tensor) -> Verdict:
    """Judge the state once more, step by step, from what the task remembered before."""
    live = dict(env.task.memory())
    after = memory_of(env.task)
    for name, tensor in live.items():
        tensor.copy_(before[name])
    judgement = env.task.judge(env.backend, moved)
    for name, tensor in live.items():
        assert torch.equal(getattr(env.task, name), after[name]), name
        tensor.copy_(after[name])
        setattr(env.task, name, tensor)
    return judgement


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lift_object", "velocity_go1", "walk_humanoid", "open_drawer"])
def test_graphs_of_a_gpu_give_the_verdicts_and_observations_of_single_kernels(name, caplog):
    env = built(name, device=GPU, backend="warp", capture=capture_on(GPU))
    start(env)
    with torch.no_grad(), caplog.at_level(logging.INFO):
        for action in random_actions(env, STEPS).to(GPU):
            env._command(action)
            env.backend.step(env._running, env._num_substeps)
            before = memory_of(env.task)
            env._sound.copy_(env._running)
            replayed = env._judge()
            plain = judged_again(env, before, env._running)
            for field in ("reward", "success", "lost"):
                assert torch.equal(getattr(replayed, field), getattr(plain, field)), field
            for metric, value in plain.metrics.items():
                found = replayed.metrics[metric]
                torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True, msg=metric)
            seen = env._observation(env._running)["policy"]
            for term, spec in env._terms.items():
                assert torch.equal(seen[term], spec.read(env.backend).to(torch.float32)), term
    assert "not replayed" not in caplog.text
