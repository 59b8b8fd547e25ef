import dataclasses
from contextlib import closing

import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.models.network import ActionScaler, ActionScaling
from isaaclab_arena.training.learner import TrainingEnvironment
from tests.environments.building import build
from tests.fakes_environment import ScriptedEnvironment


def env_slots(
    environment: Environment,
    *,
    seed: int = 3,
    group_size: int = 1,
    scaling: ActionScaling = ActionScaling.AS_IS,
    **options,
) -> TrainingEnvironment:
    scaler = ActionScaler(environment.action_spec, scaling, device=environment.device)
    training = TrainingEnvironment(environment, seed=seed, **{"scaler": scaler, "cfg": {}, **options})
    training.group_size = group_size
    return training


def taken(training: TrainingEnvironment) -> dict[str, float]:
    return training.counter.measures(training.counter.take())


def run_until_an_episode_ends(training: TrainingEnvironment):
    for _ in range(20):
        observation, rewards, dones, extras = training.step(torch.zeros(training.num_envs, training.num_actions))
        if dones.any():
            return observation, rewards, dones, extras
    raise AssertionError("no episode ended")


@pytest.mark.parametrize(
    ("ending", "is_time_out"), [("success", True), ("timeout", True), ("failure", False), ("error", False)]
)
def test_only_what_is_lost_is_worth_nothing_from_then_on(ending, is_time_out):
    training = env_slots(ScriptedEnvironment(4, endings=(ending,)))
    _, _, dones, extras = run_until_an_episode_ends(training)
    assert extras["time_outs"].equal(dones & is_time_out)


def test_an_env_slot_that_ends_shows_the_next_episode_at_once():
    environment = ScriptedEnvironment(1, endings=("failure",))
    training = env_slots(environment)
    observation, *_ = run_until_an_episode_ends(training)
    second = Episode(job="training", episode_index=1, seed=3)
    start = environment.draw_conditions(second.conditions_generator())["point.start"]
    assert observation["policy"][0].tolist() == pytest.approx(start)
    assert training.episode_length_buf.tolist() == [0]


def test_an_env_slot_that_breaks_down_leaves_no_nan_behind():
    training = env_slots(ScriptedEnvironment(3, endings=("error",)))
    observation, *_ = run_until_an_episode_ends(training)
    assert observation["policy"].isfinite().all()


def test_env_slots_begin_as_if_in_the_middle_so_that_not_all_end_at_once():
    training = env_slots(ScriptedEnvironment(2, endings=("timeout",)))
    training.episode_length_buf[:] = torch.tensor([7, 0])
    _, _, dones, extras = training.step(torch.zeros(2, 3))
    assert dones.tolist() == [True, False]
    assert extras["time_outs"].tolist() == [True, False]
    assert taken(training)["Train/num_episodes"] == 0, "an episode that was cut short is none"


def test_ranks_of_other_seeds_begin_other_episodes():
    first, second = (env_slots(ScriptedEnvironment(2), seed=seed) for seed in (3, 4))
    assert not first.get_observations()["policy"].equal(second.get_observations()["policy"])


def test_the_env_slots_of_a_group_begin_alike_and_groups_do_not():
    training = env_slots(ScriptedEnvironment(6), group_size=3)
    for _ in range(3):
        seen = training.restart()["policy"]
        assert seen[0].equal(seen[1])
        assert seen[0].equal(seen[2])
        assert not seen[0].equal(seen[3])
        # Episodes that end and begin in between, one by one, must not put the groups out of step.
        run_until_an_episode_ends(training)


def test_an_env_slot_that_is_called_solved_and_goes_on_is_no_time_out():
    environment = ScriptedEnvironment(3, endings=("timeout",))
    step = environment.step
    environment.step = lambda action: dataclasses.replace(step(action), success=torch.ones(3, dtype=torch.bool))
    training = env_slots(environment)
    for _ in range(8):
        _, _, dones, extras = training.step(torch.zeros(3, 3))
        assert extras["time_outs"].equal(dones)


def test_an_episode_that_began_as_if_in_the_middle_counts_for_nothing_however_it_ends():
    training = env_slots(ScriptedEnvironment(64, endings=("failure",)))
    torch.manual_seed(0)
    training.begin_in_the_middle()
    late = int((training.episode_length_buf > 0).sum())
    # Episodes have 3 to 8 steps, so that each env slot ends its first one meanwhile.
    ended = sum(int(training.step(torch.zeros(64, 3))[2].sum()) for _ in range(8))
    told = taken(training)
    assert 0 < late < 64
    assert told["Train/num_episodes"] == ended - late
    assert told["Train/mean_episode_length"] >= 3
    assert told["Train/lost_rate"] == 1.0


def test_outputs_can_be_shares_of_the_actions_bounds():
    environment = ScriptedEnvironment(1, endings=("timeout",))
    training = env_slots(environment, scaling=ActionScaling.WITHIN_BOUNDS)
    before = training.get_observations()["policy"].clone()
    after, *_ = training.step(torch.tensor([[1.0, -5.0, 0.0]]))
    assert (after["policy"] - before)[0].tolist() == pytest.approx([0.2, -0.1, 0.05], abs=1e-6)


def test_a_group_without_terms_is_a_vector_without_numbers():
    environment = ScriptedEnvironment(2)
    environment.observation_spec = {"policy": {"position": ArraySpec(shape=(3,))}, "critic": {}}
    observe = environment._observe
    environment._observe = lambda: {**observe(), "critic": {}}
    training = env_slots(environment)
    assert training.get_observations()["critic"].shape == (2, 0)
    observation, *_ = training.step(torch.zeros(2, 3))
    assert observation["critic"].shape == (2, 0)


def test_an_environment_that_takes_no_snapshots_says_so():
    assert env_slots(ScriptedEnvironment(2)).snapshot() is None


def test_no_picture_is_drawn_because_no_network_looks_at_one():
    seeing, blind = (build("reach", num_envs=3, enable_cameras=enabled) for enabled in (True, False))
    with closing(env_slots(seeing)) as with_cameras, closing(env_slots(blind)) as without:
        for training in (with_cameras, without):
            # Past the end of the first episodes, and then all begin anew.
            training.begin_in_the_middle()
            training.episode_length_buf[:] = training.max_episode_length - 2
        for _ in range(4):
            seen, *_ = with_cameras.step(torch.zeros(3, with_cameras.num_actions))
            assert seen["policy"].equal(without.step(torch.zeros(3, without.num_actions))[0]["policy"])
        assert with_cameras.restart()["policy"].equal(without.restart()["policy"])
        assert set(with_cameras.get_observations().keys()) == {"policy"}
    assert seeing.pictures_drawn == 0
