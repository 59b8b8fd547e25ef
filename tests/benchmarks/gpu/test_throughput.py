import torch

from benchmarks.gpu.throughput import EnvironmentLoop, Loop, build_worlds, emptied, free_memory, speeds, taken_per_world
from benchmarks.harness.environments import CPU


def test_memory_of_a_world_is_not_known_on_the_cpu():
    assert taken_per_world(emptied(CPU), free_memory(CPU), 8) is None
    assert taken_per_world(1000, 200, 8) == 100


def test_loops_take_turns_from_where_they_start_and_the_first_round_does_not_count():
    order: list[str] = []
    loops = {
        name: Loop(run=lambda name=name: order.append(name), count=5, prepare=lambda: order.append("start"))
        for name in "ab"
    }
    found = speeds(loops, rounds=2)
    assert order[::2] == ["start"] * 6
    assert sorted(order[1::2]) == ["a"] * 3 + ["b"] * 3
    assert all(speed > 0 for speed in found.values())


def test_slots_of_a_loop_are_of_all_ages_so_that_some_begin_anew_in_every_few_steps():
    environment = build_worlds("cartpole", 64, CPU, backend="mujoco")
    begun = []
    reset = environment.reset

    def counting(env_ids, conditions):
        begun.append(len(env_ids))
        return reset(env_ids, conditions)

    environment.reset = counting
    EnvironmentLoop(environment, steps=30).run()
    assert begun[0] == 64
    assert len(begun) > 2
    assert max(begun[1:]) < 64


def test_the_actions_of_a_loop_lie_within_the_bounds_of_the_environment():
    environment = build_worlds("cartpole", 2, CPU, backend="mujoco")
    seen = []
    step = environment.try_step

    def noting(action):
        seen.append(action)
        return step(action)

    environment.try_step = noting
    EnvironmentLoop(environment, steps=3).run()
    low, high = environment.action_spec.low, environment.action_spec.high
    actions = torch.cat(seen)
    assert (actions >= torch.tensor(low)).all()
    assert (actions <= torch.tensor(high)).all()
